// Package mutant switches off one safeguard at a time, so that the crash
// laboratory can show that each of them is needed. Release builds do not have
// it: without the build tag ugds_mutants On is the constant false and the
// guarded branches vanish.
package mutant

// ID names one safeguard.
type ID int32

// The safeguards that can be skipped.
const (
	None                 ID = iota
	FlushBeforeCommit       // a round commits without flushing its devices
	LateJoiner              // a round takes operations that finished during its flush
	FirstDeviceOnly         // a round flushes only the first device of its set
	DeleteBeforeReuse       // freed extents are handed out before the delete is durable
	DiscardBeforeDelete     // a slab is discarded before the deletes that emptied it are durable
	HandOutDuringDiscard    // a slab is handed out while its discard is in flight
	DrainBeforeFree         // extents are freed while commands still target them
	FreeAfterFailed         // extents are freed after a commit of unknown outcome
	WithdrawalAfterLoss     // objects stay although a device lost its cache
	PublishBeforeCommit     // sync puts are published and answered before the commit
	ApplyBeforeFlush        // the batch is applied unsynced before the flush
	End
)

var names = [...]string{
	None: "none", FlushBeforeCommit: "flush-before-commit", LateJoiner: "late-joiner",
	FirstDeviceOnly: "first-device-only", DeleteBeforeReuse: "delete-before-reuse",
	DiscardBeforeDelete: "discard-before-delete", HandOutDuringDiscard: "hand-out-during-discard",
	DrainBeforeFree: "drain-before-free", FreeAfterFailed: "free-after-failed-commit",
	WithdrawalAfterLoss: "withdrawal-after-loss", PublishBeforeCommit: "publish-before-commit",
	ApplyBeforeFlush: "apply-before-flush",
}

// String names the safeguard.
func (m ID) String() string { return names[m] }
