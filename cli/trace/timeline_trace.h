// SPDX-License-Identifier: Apache-2.0
// A simulated step in the form in which traces are read, so that what compares and draws traces
// takes it without a file.
#pragma once

#include "sim/core/chrome_trace_reader.h"
#include "sim/core/schedule.h"
#include "sim/core/timeline.h"

namespace shardwright::cli {

/// As read_chrome_trace gives what write_chrome_trace wrote: one process, the host's track first.
ReadTrace trace_of(const Schedule& schedule, const Timeline& timeline);

}  // namespace shardwright::cli
