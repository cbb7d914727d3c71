// SPDX-License-Identifier: Apache-2.0
// The scalars of a run as TensorBoard's event files, beside metrics.jsonl.
//
// A file is a series of records (TFRecord: length, CRC-32C of it, data, CRC-32C of that), each an
// Event of tensorflow/core/util/event.proto in protobuf's wire format. Every start of a run writes
// a file of its own, and TensorBoard joins them by their time. What cannot be written is lost, and
// nothing follows it: metrics.jsonl is the record.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "exec/train/metrics.h"

namespace shardwright::exec {

using Scalar = std::pair<std::string_view, double>;  // tag and value

/// One record: the version that begins a file, or scalars of a step.
std::string version_record(double wall_time_s);
std::string scalars_record(double wall_time_s, std::int64_t step, std::span<const Scalar> scalars);
/// As TFRecord masks it.
std::uint32_t masked_crc32c(std::string_view bytes);

class EventFile {
 public:
  /// Makes the folder. Throws Error when the file cannot be made.
  explicit EventFile(const std::filesystem::path& folder);
  ~EventFile();
  EventFile(const EventFile&) = delete;
  EventFile& operator=(const EventFile&) = delete;

  /// False when this and all later ones are lost; why() says why.
  bool append(const StepMetrics& metrics);
  const std::string& why() const { return why_; }

 private:
  bool write(std::string_view bytes);

  std::filesystem::path path_;
  int fd_ = -1;
  std::string why_;
};

}  // namespace shardwright::exec
