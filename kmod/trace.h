/* SPDX-License-Identifier: GPL-2.0 */
/*
 * One trace event for the steps whose order matters: that a controller
 * stops before its memory is unmapped and unpinned.
 */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM ugds

#ifndef UGDS_TRACE_STEPS
#define UGDS_TRACE_STEPS
enum ugds_step {
	UGDS_STEP_START,	/* bus mastering on */
	UGDS_STEP_DISABLE,	/* CC.EN = 0 ended; arg: error */
	UGDS_STEP_MASTER_OFF,	/* arg: nothing is pending */
	UGDS_STEP_RESET,	/* function reset ended; arg: error */
	UGDS_STEP_STOPPED,	/* arg: what showed it */
	UGDS_STEP_ISOLATED,	/* arg: why */
	UGDS_STEP_REVOKED,	/* arg: region */
	UGDS_STEP_UNMAP,	/* arg: region */
	UGDS_STEP_UNPIN,	/* arg: pages */
	UGDS_STEP_KEPT,		/* nothing showed that it stopped; arg: regions */
	UGDS_STEP_ZAP,		/* user space lost its registers */
};
#endif

#if !defined(UGDS_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define UGDS_TRACE_H

#include <linux/tracepoint.h>

TRACE_EVENT(ugds_step,
	TP_PROTO(u32 minor, enum ugds_step step, u64 arg),
	TP_ARGS(minor, step, arg),
	TP_STRUCT__entry(
		__field(u32, minor)
		__field(u32, step)
		__field(u64, arg)
	),
	TP_fast_assign(
		__entry->minor = minor;
		__entry->step = step;
		__entry->arg = arg;
	),
	TP_printk("ugds_drv%u %s %lld", __entry->minor,
		__print_symbolic(__entry->step,
			{ UGDS_STEP_START, "start" },
			{ UGDS_STEP_DISABLE, "disable" },
			{ UGDS_STEP_MASTER_OFF, "master-off" },
			{ UGDS_STEP_RESET, "reset" },
			{ UGDS_STEP_STOPPED, "stopped" },
			{ UGDS_STEP_ISOLATED, "isolated" },
			{ UGDS_STEP_REVOKED, "revoked" },
			{ UGDS_STEP_UNMAP, "unmap" },
			{ UGDS_STEP_UNPIN, "unpin" },
			{ UGDS_STEP_KEPT, "kept" },
			{ UGDS_STEP_ZAP, "zap" }),
		(s64)__entry->arg)
);

#endif /* UGDS_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
