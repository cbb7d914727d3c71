// SPDX-License-Identifier: Apache-2.0
#include "exec/train/checkpoint_writer.h"

#include <exception>
#include <utility>

#include "sim/core/base/check.h"

namespace shardwright::exec {
namespace {

CheckpointFile write_file(const StateSnapshot& snapshot, const std::filesystem::path& folder,
                          const std::string& name) {
  std::filesystem::create_directories(folder);
  const std::filesystem::path path = folder / name;
  SafetensorsWriter writer(path, snapshot.specs, {{"format", "shardwright.checkpoint"}});
  for (const std::span<const std::byte> bytes : snapshot.data) writer.write(bytes);
  writer.finish();
  // The checksum is of what lay in memory, and what the disk took has to have it.
  require_checksum(path, writer.crc());
  return {name, writer.bytes(), writer.crc()};
}

}  // namespace

CheckpointWriter::~CheckpointWriter() {
  wait();
}

void CheckpointWriter::start(StateSnapshot snapshot, std::filesystem::path folder,
                             std::string name) {
  SHARDWRIGHT_CHECK(!thread_.joinable(), "a checkpoint is being written");
  {
    const std::lock_guard lock(mutex_);
    state_ = {.stage = Stage::kWriting};
  }
  thread_ = std::thread(
      [this, snapshot = std::move(snapshot), folder = std::move(folder), name = std::move(name)] {
        State result;
        try {
          result.error = first_not_finite(snapshot);
          if (!result.error.empty()) {
            result.stage = Stage::kNotFinite;
            return store(std::move(result));
          }
          result.file = write_file(snapshot, folder, name);
          result.stage = Stage::kWritten;
        } catch (const std::exception& error) {
          result.stage = Stage::kFailed;
          result.error = error.what();
        }
        store(std::move(result));
      });
}

void CheckpointWriter::store(State result) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(result);
}

CheckpointWriter::State CheckpointWriter::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void CheckpointWriter::wait() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::reset() {
  wait();
  const std::lock_guard lock(mutex_);
  state_ = {};
}

}  // namespace shardwright::exec
