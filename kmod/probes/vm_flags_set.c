// SPDX-License-Identifier: GPL-2.0
/* Flags of a mapping change through functions: 6.3. */
#include <linux/mm.h>
void probe(struct vm_area_struct *vma);
void probe(struct vm_area_struct *vma)
{
	vm_flags_mod(vma, VM_IO, VM_MAYEXEC);
}
