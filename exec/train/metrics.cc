// SPDX-License-Identifier: Apache-2.0
#include "exec/train/metrics.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "exec/trace/activity.h"
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

/// Without a line's end. What is not finite is null.
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

}  // namespace

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

namespace {

// Fields of Event, Summary and Summary.Value, with protobuf's wire types.
constexpr std::uint8_t kWallTime = 1 << 3 | 1;     // double
constexpr std::uint8_t kStep = 2 << 3 | 0;         // varint
constexpr std::uint8_t kFileVersion = 3 << 3 | 2;  // bytes
constexpr std::uint8_t kSummary = 5 << 3 | 2;      // message
constexpr std::uint8_t kValue = 1 << 3 | 2;        // message
constexpr std::uint8_t kTag = 1 << 3 | 2;          // bytes
constexpr std::uint8_t kSimpleValue = 2 << 3 | 5;  // float

template <class Bits>
void put_bits(std::string& to, Bits bits) {
  for (std::size_t i = 0; i < sizeof bits; ++i) {
    to.push_back(static_cast<char>(bits >> (8 * i) & 0xff));
  }
}

void put_varint(std::string& to, std::uint64_t value) {
  for (; value >= 0x80; value >>= 7) to.push_back(static_cast<char>((value & 0x7f) | 0x80));
  to.push_back(static_cast<char>(value));
}

void put_bytes(std::string& to, std::uint8_t field, std::string_view bytes) {
  to.push_back(static_cast<char>(field));
  put_varint(to, bytes.size());
  to += bytes;
}

std::string event_of(double wall_time_s) {
  std::string event(1, static_cast<char>(kWallTime));
  put_bits(event, std::bit_cast<std::uint64_t>(wall_time_s));
  return event;
}

std::string record_of(const std::string& event) {
  std::string record;
  put_bits(record, static_cast<std::uint64_t>(event.size()));
  put_bits(record, masked_crc32c(record));
  record += event;
  put_bits(record, masked_crc32c(event));
  return record;
}

double now_s() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

std::uint32_t masked_crc32c(std::string_view bytes) {
  // Castagnoli's polynomial, reflected.
  static constexpr std::array<std::uint32_t, 256> kTable = [] {
    std::array<std::uint32_t, 256> table{};
    for (std::uint32_t i = 0; i < 256; ++i) {
      std::uint32_t sum = i;
      for (int bit = 0; bit < 8; ++bit) sum = sum >> 1 ^ ((sum & 1) != 0 ? 0x82f63b78u : 0u);
      table[i] = sum;
    }
    return table;
  }();
  std::uint32_t sum = ~0u;
  for (const char c : bytes) sum = sum >> 8 ^ kTable[(sum ^ static_cast<unsigned char>(c)) & 0xff];
  sum = ~sum;
  return (sum >> 15 | sum << 17) + 0xa282ead8u;
}

std::string version_record(double wall_time_s) {
  std::string event = event_of(wall_time_s);
  put_bytes(event, kFileVersion, "brain.Event:2");
  return record_of(event);
}

std::string scalars_record(double wall_time_s, std::int64_t step, std::span<const Scalar> scalars) {
  std::string summary;
  for (const auto& [tag, number] : scalars) {
    std::string value;
    put_bytes(value, kTag, tag);
    value.push_back(static_cast<char>(kSimpleValue));
    put_bits(value, std::bit_cast<std::uint32_t>(static_cast<float>(number)));
    put_bytes(summary, kValue, value);
  }
  std::string event = event_of(wall_time_s);
  event.push_back(static_cast<char>(kStep));
  put_varint(event, static_cast<std::uint64_t>(step));
  put_bytes(event, kSummary, summary);
  return record_of(event);
}

EventFile::EventFile(const std::filesystem::path& folder) {
  make_durable_folder(folder);
  const double now = now_s();
  // TensorBoard takes files by "tfevents" in their names and orders them by name.
  path_ = folder / fmt::format("events.out.tfevents.{:.0f}.{}", now, ::getpid());
  fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
  if (fd_ < 0 || !write(version_record(now))) {
    throw Error(fmt::format("{}: cannot write this file: {}", path_.string(),
                            std::generic_category().message(errno)),
                exit_code_of(errno));
  }
}

EventFile::~EventFile() {
  if (fd_ >= 0) ::close(fd_);
}

bool EventFile::append(const StepMetrics& metrics) {
  if (!why_.empty()) return false;
  std::vector<Scalar> scalars{{"train/loss", metrics.loss},
                              {"train/grad_norm", metrics.grad_norm},
                              {"train/lr", metrics.lr},
                              {"speed/step_time_s", metrics.step_time_s},
                              {"speed/tokens_per_s", metrics.tokens_per_s}};
  if (metrics.mfu) scalars.emplace_back("speed/mfu", *metrics.mfu);
  if (metrics.predicted_step_time_s)
    scalars.emplace_back("speed/predicted_step_time_s", *metrics.predicted_step_time_s);
  if (metrics.eval_loss) scalars.emplace_back("eval/loss", *metrics.eval_loss);
  return write(scalars_record(now_s(), metrics.step, scalars));
}

bool EventFile::write(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) {
      why_ = fmt::format("{}: cannot write this file: {}", path_.string(),
                         std::generic_category().message(errno));
      return false;
    }
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return true;
}

namespace {

static_assert(std::is_trivially_copyable_v<Span>);

void gather_spans(Communicator& world, std::vector<Span>& spans) {
  const auto mine = static_cast<std::int64_t>(spans.size());
  const std::vector<std::int64_t> counts = exchange_all(world, mine);
  const auto most = static_cast<std::size_t>(*std::max_element(counts.begin(), counts.end()));
  if (most == 0) return;
  spans.resize(most);
  std::vector<Span> all(most * counts.size());
  world.exchange(std::as_bytes(std::span(spans)), std::as_writable_bytes(std::span(all)));
  spans.clear();
  for (std::size_t rank = 0; rank < counts.size(); ++rank) {
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank * most);
    spans.insert(spans.end(), begin, begin + counts[rank]);
  }
}

/// What every rank has, one after the other by rank.
std::vector<std::string> gather_names(Communicator& world, const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + '\n';
  std::vector<std::string> gathered;
  for (const std::string& all : exchange_texts(world, text)) {
    for (std::size_t begin = 0; begin < all.size();) {
      const std::size_t end = all.find('\n', begin);
      if (end > begin) gathered.push_back(all.substr(begin, end - begin));
      begin = end + 1;
    }
  }
  return gathered;
}

}  // namespace

Timeline gather_timeline(Communicator& world, Timeline mine) {
  const std::vector<std::string> own = std::exchange(mine.names, {});
  NameTable table(mine.names);
  for (const std::string& name : gather_names(world, own)) table.index_of(name);
  table.rename(mine.spans, own);
  table.rename(mine.host, own);
  gather_spans(world, mine.spans);
  gather_spans(world, mine.host);
  for (const Span& span : mine.spans) mine.step_ns = std::max(mine.step_ns, span.end_ns);
  return mine;
}

}  // namespace shardwright::exec
