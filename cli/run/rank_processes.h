// SPDX-License-Identifier: Apache-2.0
// A process for each rank on this machine's GPUs, which `run` starts itself: NCCL registers memory
// of ranks only where each is a process, and launches of one do not fill the queue of another.
//
// They are this program again with the same arguments and a rank in the environment, as a launcher
// would start them; they meet by a file. Not yet run on a GPU.
#pragma once

#include <string>
#include <vector>

#include "cli/machine/execution.h"
#include "exec/comm/launch_environment.h"

namespace shardwright::cli {

/// Whether the ranks of this process are to become processes.
bool starts_processes(Transport transport, const exec::LaunchEnvironment& launch,
                      std::int64_t ranks);

/// The words that started this process.
std::vector<std::string> own_words();

/// Starts `ranks` processes with these words and waits for all. Signals that end a run are passed
/// on to them; where one fails the others have `grace_s` to end before they are killed. Returns the
/// exit code of the first that failed, or 0; one that a signal ended failed with kFailed, and a
/// sentence says so. What rank 0 writes to stderr is seen at once, and what the first that failed
/// wrote at the end, unless rank 0 has said why it failed, too.
int run_processes(const std::vector<std::string>& words, int ranks, double grace_s = 30);

/// Of such a process: it is asked to end when the one that started it is gone.
void end_with_parent();

}  // namespace shardwright::cli
