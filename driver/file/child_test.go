package file_test

// child runs the part of a test that needs a process of its own; it returns
// when this process is the test binary itself.
func child() {}
