// SPDX-License-Identifier: Apache-2.0
#include "profiles/import/step_log.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <optional>
#include <string_view>

#include "profiles/import/byte_stream.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::profiles {
namespace {

constexpr std::size_t kLongestLine = 2048;
constexpr double kLongestStep = 1e6;  // seconds
constexpr double kNormalOverMad = 1.4826;
constexpr std::size_t kMostSteps = 10'000'000;

struct LoggedStep {
  std::int64_t step = 0;  // 0: the line does not say
  double seconds = 0;
};

/// "1,234.5", "12.3K", "1.2e-3" at the beginning of `text`, behind spaces, quotes, ':' and '='.
std::optional<double> leading_number(std::string_view text) {
  const std::size_t at = text.find_first_not_of(" \t'\":=");
  if (at == text.npos) return std::nullopt;
  std::string digits;
  std::size_t end = at;
  for (; end < text.size() && digits.size() < 32; ++end) {
    const char c = text[end];
    const bool behind_e = digits.ends_with('e') || digits.ends_with('E');
    const bool has_exponent = digits.find_first_of("eE") != digits.npos;
    const bool exponent = (c == 'e' || c == 'E') && !digits.empty() && !has_exponent;
    const bool point = c == '.' && !has_exponent && digits.find('.') == digits.npos;
    const bool sign = (c == '-' || c == '+') && behind_e;
    if (c == ',' && end + 1 < text.size() &&
        std::isdigit(static_cast<unsigned char>(text[end + 1])))
      continue;
    if (!std::isdigit(static_cast<unsigned char>(c)) && !point && !exponent && !sign) break;
    digits += c;
  }
  digits.erase(digits.find_last_not_of("eE+-") + 1);  // "3 e", "3e-": no exponent
  const std::optional<double> value = parse_double(digits);
  if (!value) return std::nullopt;
  const char unit = end < text.size() ? text[end] : ' ';
  return *value * (unit == 'K' ? 1e3 : unit == 'M' ? 1e6 : unit == 'G' || unit == 'B' ? 1e9 : 1);
}

std::optional<double> number_after(std::string_view line, std::string_view key) {
  const std::size_t at = line.find(key);
  return at == line.npos ? std::nullopt : leading_number(line.substr(at + key.size()));
}

std::optional<LoggedStep> step_of(std::optional<double> step, std::optional<double> seconds) {
  if (!seconds || !(*seconds > 0) || !(*seconds < kLongestStep)) return std::nullopt;
  const bool numbered = step && *step >= 0 && *step < 1e15;
  return LoggedStep{numbered ? static_cast<std::int64_t>(*step) : 0, *seconds};
}

std::optional<double> over(double numerator, std::optional<double> rate) {
  return rate && *rate > 0 ? std::optional(numerator / *rate) : std::nullopt;
}

// "step: 10  loss:  7.2  memory: 40.5GiB(51.2%)  tps: 7,850  tflops: 45.1": tokens/s of a GPU.
std::optional<LoggedStep> torchtitan(std::string_view line, double tokens_per_gpu) {
  if (line.find("loss:") == line.npos) return std::nullopt;
  return step_of(number_after(line, "step:"), over(tokens_per_gpu, number_after(line, " tps:")));
}

// " iteration 10/ 1000 | ... | elapsed time per iteration (ms): 1234.5 |"; Megatron-Bridge the
// same.
std::optional<LoggedStep> megatron(std::string_view line, double) {
  const auto ms = number_after(line, "elapsed time per iteration (ms):");
  return step_of(number_after(line, "iteration "), ms ? std::optional(*ms / 1e3) : std::nullopt);
}

// "iteration: 2 / 1800 | consumed_tokens: 4.19M | elapsed_time_per_iteration_ms: 5.87K |"
std::optional<LoggedStep> nanotron(std::string_view line, double) {
  const auto ms = number_after(line, "time_per_iteration_ms:");
  return step_of(number_after(line, "iteration:"), ms ? std::optional(*ms / 1e3) : std::nullopt);
}

// "global_step: 9 | ... | train_step_timing in s: 2.34", or "global_step=9.000, ..." of a bar.
std::optional<LoggedStep> nemo(std::string_view line, double) {
  return step_of(number_after(line, "global_step"), number_after(line, "train_step_timing in s"));
}

// {"step":3,...,"step_time_s":0.42}
std::optional<LoggedStep> own_metrics(std::string_view line, double) {
  return step_of(number_after(line, "\"step\":"), number_after(line, "\"step_time_s\":"));
}

// " 1%|  | 10/1000 [00:20<33:00,  2.00s/it]": the last bar of the line counts.
std::optional<LoggedStep> progress_bar(std::string_view line, double) {
  const std::size_t slow = line.rfind("s/it"), fast = line.rfind("it/s");
  const bool by_rate = slow == line.npos || (fast != line.npos && fast > slow);
  const std::size_t unit = by_rate ? fast : slow;
  if (unit == line.npos) return std::nullopt;
  const std::size_t open = line.rfind('[', unit), comma = line.rfind(',', unit);
  if (open == line.npos || comma == line.npos || comma < open) return std::nullopt;
  const auto rate = leading_number(line.substr(comma + 1));
  const std::size_t slash = line.rfind('/', open);
  if (slash == line.npos) return std::nullopt;
  const std::size_t before = line.find_last_not_of("0123456789", slash - (slash > 0));
  const auto step = leading_number(line.substr(before == line.npos ? 0 : before + 1));
  return step_of(step, by_rate ? over(1, rate) : rate);
}

// {'train_runtime': 812.4, ..., 'train_steps_per_second': 1.23}: of a run without a bar.
std::optional<LoggedStep> trainer_summary(std::string_view line, double) {
  return step_of(std::nullopt, over(1, number_after(line, "train_steps_per_second")));
}

struct Kind {
  const char* name;
  std::optional<LoggedStep> (*read)(std::string_view line, double tokens_per_gpu);
};
constexpr std::array kKinds = {Kind{"torchtitan", torchtitan},
                               Kind{"Megatron", megatron},
                               Kind{"nanotron", nanotron},
                               Kind{"NeMo", nemo},
                               Kind{"metrics.jsonl", own_metrics},
                               Kind{"a progress bar of Transformers' Trainer", progress_bar},
                               Kind{"the summary of Transformers' Trainer", trainer_summary}};

/// Without what colours a terminal: ESC [ ... letter.
std::string without_colours(std::string_view line) {
  std::string plain;
  for (std::size_t i = 0; i < line.size(); ++i) {
    if (line[i] == '\x1b' && i + 1 < line.size() && line[i + 1] == '[') {
      i += 2;
      while (i < line.size() && !std::isalpha(static_cast<unsigned char>(line[i]))) ++i;
      continue;
    }
    plain += line[i];
  }
  return plain;
}

class StepReader {
 public:
  explicit StepReader(double tokens_per_gpu) : tokens_per_gpu_(tokens_per_gpu) {}

  void take(std::string_view raw) {
    if (raw.empty() || log_.seconds.size() >= kMostSteps) return;
    const std::string line = without_colours(raw);
    for (const Kind& kind : kKinds) {
      if (!log_.format.empty() && log_.format != kind.name) continue;
      const std::optional<LoggedStep> found = kind.read(line, tokens_per_gpu_);
      if (!found) continue;
      // Another rank, or a bar that is drawn again.
      if (found->step > 0 && found->step <= last_) return;
      last_ = std::max(last_, found->step);
      log_.format = kind.name;
      log_.seconds.push_back(found->seconds);
      return;
    }
  }
  StepLog& log() { return log_; }

 private:
  double tokens_per_gpu_;
  std::int64_t last_ = 0;
  StepLog log_;
};

}  // namespace

std::string step_log_kinds() {
  return "torchtitan, Megatron-LM, Megatron-Bridge, NeMo, nanotron, Transformers' Trainer "
         "(Accelerate) or metrics.jsonl";
}

StepLog read_step_log(const std::filesystem::path& file, double tokens_per_gpu) {
  ByteStream stream(file);
  StepReader reader(tokens_per_gpu);
  std::string line;
  std::array<char, 1 << 16> buffer{};
  while (const std::size_t read = stream.read(buffer.data(), buffer.size())) {
    for (std::size_t i = 0; i < read; ++i) {
      const char c = buffer[i];
      if (c == '\n' || c == '\r') {
        reader.take(line);
        line.clear();
      } else if (line.size() < kLongestLine) {
        line += c;
      }
    }
  }
  reader.take(line);
  if (reader.log().seconds.empty()) {
    throw Error(
        fmt::format("{}: holds no step, expected a log of {}", file.string(), step_log_kinds()));
  }
  return std::move(reader.log());
}

MedianStep median_step(const StepLog& log, std::int64_t skipped) {
  const auto all = static_cast<std::int64_t>(log.seconds.size());
  MedianStep result;
  result.skipped = std::max<std::int64_t>(0, skipped < all ? skipped : all / 2);
  std::vector<double> logs;
  for (auto i = static_cast<std::size_t>(result.skipped); i < log.seconds.size(); ++i)
    logs.push_back(std::log(log.seconds[i]));
  result.steps = static_cast<std::int64_t>(logs.size());
  const auto middle = [](std::vector<double> values) {
    const auto at = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
    std::nth_element(values.begin(), at, values.end());
    return *at;
  };
  const double median = middle(logs);
  std::vector<double> off;
  for (const double value : logs) off.push_back(std::abs(value - median));
  result.seconds = std::exp(median);
  result.spread = kNormalOverMad * middle(off);
  return result;
}

}  // namespace shardwright::profiles
