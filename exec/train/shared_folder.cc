// SPDX-License-Identifier: Apache-2.0
#include "exec/train/shared_folder.h"

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <span>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

/// One number of every rank.
std::vector<std::uint64_t> exchange_number(Communicator& world, std::uint64_t mine) {
  std::vector<std::uint64_t> all(static_cast<std::size_t>(world.size()));
  world.exchange(std::as_bytes(std::span(&mine, 1)), std::as_writable_bytes(std::span(all)));
  return all;
}

/// A name that no earlier run has looked for, so that no cache remembers that it lacks.
std::uint64_t fresh_number() {
  const Nonce nonce = fresh_nonce();
  std::uint64_t number = 0;
  std::memcpy(&number, nonce.data(), sizeof number);
  return number;
}

bool appears(const fs::path& file, double patience_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(patience_s);
  std::error_code ignored;
  while (!fs::exists(file, ignored)) {
    if (Clock::now() >= end) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  return true;
}

}  // namespace

void require_files(const fs::path& folder, const CheckpointManifest& manifest, double patience_s) {
  const auto end = Clock::now() + std::chrono::duration<double>(patience_s);
  for (const CheckpointFile& file : manifest.files) {
    while (true) {
      std::error_code missing;
      const auto bytes = static_cast<std::int64_t>(fs::file_size(folder / file.name, missing));
      if (!missing && bytes == file.bytes) break;
      if (Clock::now() < end) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        continue;
      }
      throw Error(fmt::format("{}: {} here, but its rank wrote {} bytes; expected a folder that "
                              "all ranks share",
                              (folder / file.name).string(),
                              missing ? "not" : fmt::format("{} bytes are", bytes), file.bytes),
                  ExitCode::kFailed);
    }
  }
}

void require_shared_folder(Communicator& world, const fs::path& folder,
                           std::span<const std::int64_t> writers, double patience_s) {
  if (world.size() == 1 || writers.size() <= 1) return;
  const std::uint64_t number =
      exchange_number(world, world.rank() == 0 ? fresh_number() : 0).front();
  const fs::path probe = folder / fmt::format("{}{:016x}", kSharedProbe, number);
  if (world.rank() == 0) write_file_atomically(probe, "", OutputPlace::kInFolder);
  world.barrier();
  const bool writes = std::find(writers.begin(), writers.end(), world.rank()) != writers.end();
  const bool sees = !writes || appears(probe, patience_s);
  const std::vector<std::uint64_t> seen = exchange_number(world, sees ? 1 : 0);
  std::error_code ignored;
  if (world.rank() == 0) fs::remove(probe, ignored);
  for (std::size_t rank = 0; rank < seen.size(); ++rank) {
    if (seen[rank] != 0) continue;
    throw Error(
        fmt::format("{}: rank {} does not see what rank 0 writes there; expected a folder "
                    "that all ranks share, or --save none",
                    folder.string(), rank));
  }
}

}  // namespace shardwright::exec
