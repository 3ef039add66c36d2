// Package guest holds the tests that run inside the lab's machines, on QEMU's NVMe
// controller and a real kernel. They are built with the tag ugds_lab; tools/lab
// puts them into the guest.
package guest
