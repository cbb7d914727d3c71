// SPDX-License-Identifier: Apache-2.0
// metrics.jsonl: one JSON object a step, appended and flushed, so that a plot can follow the run.
//
// Numbers are written with as many digits as it takes to read the same number back. A resumed run
// drops the lines of the steps that it repeats, and a line that a kill cut in two. A line that
// cannot be written (a full disk) is lost, and nothing of it stays: the file always ends in a
// line's end, and the next line is tried again.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "exec/communicator.h"
#include "sim/core/timeline.h"

namespace shardwright::exec {

struct StepMetrics {
  std::int64_t step = 0;
  double loss = 0;       // nats per counted token
  double grad_norm = 0;  // before clipping
  double lr = 0;
  std::int64_t tokens = 0;  // of this step, all ranks
  double step_time_s = 0;
  double tokens_per_s = 0;
  bool skipped = false;             // no update
  std::optional<double> eval_loss;  // after the update
  /// Where known: the step's model FLOPs as a share of the dense peak of the GPUs, and of the best
  /// product that was measured on them; and the step's predicted time.
  std::optional<double> mfu;
  std::optional<double> share_of_best_product;
  std::optional<double> predicted_step_time_s;
};

class MetricsLog {
 public:
  /// Keeps the lines of steps up to `resumed_step`. Throws Error when the file cannot be written.
  MetricsLog(const std::filesystem::path& path, std::int64_t resumed_step);
  ~MetricsLog();
  MetricsLog(const MetricsLog&) = delete;
  MetricsLog& operator=(const MetricsLog&) = delete;

  /// False when the line is lost; why() says why.
  bool append(const StepMetrics& metrics);
  const std::string& why() const { return why_; }

 private:
  bool lose();

  std::filesystem::path path_;
  int fd_ = -1;
  std::int64_t bytes_ = 0;  // of whole lines
  bool torn_ = false;       // something may stand behind them
  std::string why_;
};

// The scalars of a run as TensorBoard's event files, beside metrics.jsonl.
//
// A file is a series of records (TFRecord: length, CRC-32C of it, data, CRC-32C of that), each an
// Event of tensorflow/core/util/event.proto in protobuf's wire format. Every start of a run writes
// a file of its own, and TensorBoard joins them by their time. What cannot be written is lost, and
// nothing follows it: metrics.jsonl is the record.

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

// The spans of all ranks in one timeline.

/// `mine`, with its own rank's memory, and the spans of all ranks, on every rank. All call it
/// together.
Timeline gather_timeline(Communicator& world, Timeline mine);

}  // namespace shardwright::exec
