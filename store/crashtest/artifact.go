package crashtest

import (
	"github.com/ugds-store/ugds/meta/metatest"
)

// savedImage is a drawn image as it was before anything opened it.
type savedImage struct {
	meta  *metatest.FS
	disks []savedDisk
}

type savedDisk struct {
	opts    DiskOptions
	content *media
}
