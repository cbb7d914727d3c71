// SPDX-License-Identifier: Apache-2.0
#include "exec/train/event_file.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <system_error>
#include <vector>

#include "sim/core/base/atomic_file.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
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

}  // namespace shardwright::exec
