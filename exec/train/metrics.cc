// SPDX-License-Identifier: Apache-2.0
#include "exec/train/metrics.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>
#include <system_error>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"
#include "sim/core/base/json_file.h"

namespace shardwright::exec {
namespace {

std::string number(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

/// The step of a whole line, or none.
std::optional<std::int64_t> step_of(const std::string& line) {
  const auto parsed = parse_json(line, false);
  if (!parsed.is_object() || !parsed.contains("step") || !parsed["step"].is_number_integer()) {
    return std::nullopt;
  }
  return parsed["step"].get<std::int64_t>();
}

}  // namespace

std::string metrics_line(const StepMetrics& m) {
  std::string line = fmt::format(
      R"({{"step":{},"loss":{},"grad_norm":{},"lr":{},"tokens":{},"step_time_s":{},"tokens_per_s":{})",
      m.step, number(m.loss), number(m.grad_norm), number(m.lr), m.tokens, number(m.step_time_s),
      number(m.tokens_per_s));
  if (m.skipped) line += R"(,"skipped":true)";
  if (m.eval_loss) line += fmt::format(R"(,"eval_loss":{})", number(*m.eval_loss));
  const auto add = [&](const char* name, const std::optional<double>& value) {
    if (value) line += fmt::format(R"(,"{}":{})", name, number(*value));
  };
  add("mfu", m.mfu);
  add("share_of_best_product", m.share_of_best_product);
  add("predicted_step_time_s", m.predicted_step_time_s);
  return line + "}";
}

MetricsLog::MetricsLog(const std::filesystem::path& path, std::int64_t resumed_step) : path_(path) {
  std::string kept;
  if (resumed_step > 0) {
    require_regular_or_none(path);  // a pipe would be waited for
    std::ifstream before(path);
    std::string line;
    while (std::getline(before, line)) {
      const std::optional<std::int64_t> step = step_of(line);
      if (step && *step <= resumed_step) kept += line + "\n";
    }
  }
  write_file_atomically(path, kept, OutputPlace::kInFolder);
  fd_ = ::open(path.c_str(), O_WRONLY | O_APPEND | O_NOFOLLOW | O_CLOEXEC);
  if (fd_ < 0) {
    const int reason = errno;
    throw Error(fmt::format("{}: cannot write this file: {}", path.string(),
                            std::generic_category().message(reason)),
                exit_code_of(reason));
  }
  bytes_ = static_cast<std::int64_t>(kept.size());
}

MetricsLog::~MetricsLog() {
  if (fd_ >= 0) ::close(fd_);
}

bool MetricsLog::lose() {
  why_ = fmt::format("{}: cannot write this file: {}", path_.string(),
                     std::generic_category().message(errno));
  torn_ = ::ftruncate(fd_, bytes_) != 0;
  return false;
}

bool MetricsLog::append(const StepMetrics& metrics) {
  const std::string line = metrics_line(metrics) + "\n";
  if (torn_ && ::ftruncate(fd_, bytes_) != 0) return lose();
  torn_ = false;
  std::string_view rest = line;
  while (!rest.empty()) {
    const ssize_t count = ::write(fd_, rest.data(), rest.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return lose();
    rest.remove_prefix(static_cast<std::size_t>(count));
  }
  bytes_ += static_cast<std::int64_t>(line.size());
  return true;
}

}  // namespace shardwright::exec
