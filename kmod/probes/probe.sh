#!/bin/sh
# SPDX-License-Identifier: GPL-2.0
# probe.sh KDIR MAKE: compiles every probe of this folder against the headers in
# KDIR, and prints a #define for each that compiles. A probe that fails for another
# reason than the one it asks for would choose the wrong side silently; so "control",
# which uses nothing special, has to compile.
set -eu
kdir=$1
make=${2:-make}
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cp "$here"/*.c "$work"
objects=
: > "$work/Kbuild"
for c in "$work"/*.c; do
	o=$(basename "$c" .c).o
	objects="$objects $o"
	echo "obj-m += $o" >> "$work/Kbuild"
done
# -k: go on after a failure, which is an answer. The flags of an outer make are
# not for this one.
MAKEFLAGS='' MFLAGS='' $make -k -C "$kdir" M="$work" KCFLAGS=-Werror $objects > "$work/log" 2>&1 || true
if [ ! -e "$work/control.o" ]; then
	cat "$work/log" >&2
	echo "probe.sh: the headers in $kdir do not work" >&2
	exit 1
fi
echo "/* Made by probes/probe.sh. */"
for o in $objects; do
	name=${o%.o}
	[ "$name" = control ] && continue
	if [ -e "$work/$o" ]; then
		echo "#define HAVE_$(echo "$name" | tr '[:lower:]' '[:upper:]') 1"
	fi
done
