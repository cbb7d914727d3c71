// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/bootstrap.h"

#include <fmt/core.h>

#include "exec/communicator.h"

namespace shardwright::exec {

void run_rank(Bootstrap& bootstrap, const std::function<void()>& body) {
  if (bootstrap.ranks() == 1) return body();
  try {
    return body();
  } catch (const Aborted& aborted) {
    bootstrap.fail(ExitCode::kFailed, aborted.what());
  } catch (const Error& error) {
    bootstrap.fail(error.code(), error.what());
  } catch (const std::exception& error) {
    bootstrap.fail(ExitCode::kFailed, error.what());
  }
  const RankFailure first = *bootstrap.failure();
  throw Error(fmt::format("rank {} of {}: {}", first.rank, bootstrap.ranks(), first.what),
              first.code);
}

}  // namespace shardwright::exec
