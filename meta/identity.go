package meta

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"io"
	iofs "io/fs"

	"github.com/cockroachdb/pebble/v2/vfs"
	"github.com/ugds-store/ugds/internal/base"
)

// Identity says which store a metadata directory belongs to. The store judges
// it against the superblocks of the devices.
type Identity struct {
	Version uint32   // of the store's format on the devices
	Store   [16]byte // of the store
	Epoch   uint64   // rises at each open
	Devices [][16]byte
}

// Layout of the identity file, little-endian: 8 bytes of magic, file version
// u32, number of devices u32, format version u32, store, epoch u64, devices,
// and a CRC-32C over all before it.
const (
	identityMagic   = "uGDSmeta"
	identityFileVer = 1
	identityFixed   = 8 + 4 + 4 + 4 + 16 + 8
)

func (id Identity) encode() ([]byte, error) {
	if len(id.Devices) > MaxDevices {
		return nil, base.Errorf("write identity", "", base.ErrInvalid, "%d devices (at most %d)", len(id.Devices), MaxDevices)
	}
	le := binary.LittleEndian
	b := append(make([]byte, 0, identityFixed+16*len(id.Devices)+4), identityMagic...)
	b = le.AppendUint32(b, identityFileVer)
	b = le.AppendUint32(b, uint32(len(id.Devices)))
	b = le.AppendUint32(b, id.Version)
	b = append(b, id.Store[:]...)
	b = le.AppendUint64(b, id.Epoch)
	for _, dev := range id.Devices {
		b = append(b, dev[:]...)
	}
	return le.AppendUint32(b, crc32.Checksum(b, castagnoli)), nil
}

func decodeIdentity(b []byte) (id Identity, why string) {
	le := binary.LittleEndian
	switch {
	case len(b) < identityFixed+4:
		return id, "it is too short"
	case !bytes.HasPrefix(b, []byte(identityMagic)):
		return id, "it does not begin with the magic"
	case le.Uint32(b[len(b)-4:]) != crc32.Checksum(b[:len(b)-4], castagnoli):
		return id, "its checksum is wrong"
	case le.Uint32(b[8:]) != identityFileVer:
		return id, "its version is unknown to this program"
	}
	n := int64(le.Uint32(b[12:]))
	if n > MaxDevices || int64(len(b)) != identityFixed+16*n+4 {
		return id, "its length does not fit the number of devices"
	}
	id.Version = le.Uint32(b[16:])
	copy(id.Store[:], b[20:])
	id.Epoch = le.Uint64(b[36:])
	for b = b[identityFixed:]; n > 0; n-- {
		id.Devices = append(id.Devices, [16]byte(b))
		b = b[16:]
	}
	return id, ""
}

// ReadIdentity reads the identity file, without opening Pebble and without a
// lock. ErrNotFound when the directory holds no store, ErrCorrupt when the file
// is damaged.
func ReadIdentity(o Options) (Identity, error) {
	o = o.withDefaults()
	path := o.path(identityName)
	f, err := openRegular(o.FS, path)
	if errors.Is(err, iofs.ErrNotExist) {
		err = base.Errorf("read identity", path, base.ErrNotFound, "no store is there: %w", err)
		return Identity{}, base.WithHint(err, "check the name; if a store was there, bring the whole directory back from a copy; format begins an empty store")
	}
	if errors.Is(err, errNotRegular) {
		return Identity{}, base.WithHint(base.Errorf("read identity", path, base.ErrCorrupt, "%w", err), "%s", damagedHint)
	}
	if err != nil {
		return Identity{}, denied(o.Dir, base.Wrap("read identity", path, err))
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, identityMaxBytes))
	if err != nil {
		return Identity{}, base.Wrap("read identity", path, err)
	}
	id, why := decodeIdentity(b)
	if why != "" {
		return Identity{}, base.WithHint(base.Errorf("read identity", path, base.ErrCorrupt, "%s", why), "%s", damagedHint)
	}
	return id, nil
}

// WriteIdentity replaces the identity file atomically and durably: a crash
// leaves the old one or the new one. It takes no lock: the caller owns the
// directory. While a DB is open use its own WriteIdentity, which the fence
// stops.
func WriteIdentity(o Options, id Identity) error {
	o = o.withDefaults()
	if o.ReadOnly {
		return base.Errorf("write identity", o.Dir, base.ErrReadOnly, "opened read-only")
	}
	return writeIdentity(o.FS, o, id)
}

// writeIdentity works on fs, which is the one of o or a fenced one over it.
func writeIdentity(fs vfs.FS, o Options, id Identity) error {
	b, err := id.encode()
	if err != nil {
		return err
	}
	temp, path := o.path(identityTemp), o.path(identityName)
	if err := writeFile(fs, temp, b, path); err != nil {
		return ioError("write identity", o, temp, err)
	}
	if err := fs.Rename(temp, path); err != nil {
		return ioError("write identity", o, path, err)
	}
	return ioError("write identity", o, o.Dir, syncDir(fs, o.Dir))
}

// writeFile makes path with the content b, synced. If it is to replace another file,
// that one is named, whose owner and permissions it gets.
func writeFile(fs vfs.FS, path string, b []byte, replaces string) error {
	f, err := create(fs, path)
	if err != nil {
		return err
	}
	if replaces != "" {
		keepOwner(f, replaces)
	}
	_, err = f.Write(bytes.Clone(b)) // a vfs may scribble over what it is given
	if err == nil {
		err = f.Sync()
	}
	return errors.Join(err, f.Close())
}

// errNotRegular is what openRegular says of a FIFO, a directory and the like.
var errNotRegular = errors.New("it is not a regular file")

// openRegular is fs.Open, which would wait for the other end of a FIFO, for regular
// files alone.
func openRegular(fs vfs.FS, path string, opts ...vfs.OpenOption) (vfs.File, error) {
	if st, err := fs.Stat(path); err == nil && !st.Mode().IsRegular() {
		return nil, errNotRegular
	}
	return fs.Open(path, opts...)
}

func syncDir(fs vfs.FS, dir string) error {
	f, err := fs.OpenDir(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// WriteIdentity is WriteIdentity for the directory of d; behind the fence, and
// on a read-only DB, it fails with ErrReadOnly.
func (d *DB) WriteIdentity(id Identity) error {
	if err := d.life.enter("write identity"); err != nil {
		return err
	}
	defer d.life.leave()
	return writeIdentity(d.fs, d.o, id)
}
