// Command ugdsctl works with a store from the command line. It only declares
// flags and wires; the verbs are in tools/ctl.
package main

func main() {}
