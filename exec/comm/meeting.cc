// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/meeting.h"

#include <fmt/core.h>

#include "exec/communicator.h"

namespace shardwright::exec {

void run_rank(Meeting& meeting, const std::function<void()>& body) {
  if (meeting.ranks() == 1) return body();
  try {
    return body();
  } catch (const Aborted& aborted) {
    meeting.fail(ExitCode::kFailed, aborted.what());
  } catch (const Error& error) {
    meeting.fail(error.code(), error.what());
  } catch (const std::exception& error) {
    meeting.fail(ExitCode::kFailed, error.what());
  }
  const RankFailure first = *meeting.failure();
  throw Error(fmt::format("rank {} of {}: {}", first.rank, meeting.ranks(), first.what),
              first.code);
}

}  // namespace shardwright::exec
