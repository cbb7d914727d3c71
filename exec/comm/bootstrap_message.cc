// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/bootstrap_message.h"

#include <fmt/core.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "exec/comm/one_line.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::exec {
namespace {

// The last digit is the version of the protocol. A machine of another byte order is not understood.
constexpr std::uint32_t kMessageMagic = 0x5357'4d32;
constexpr std::size_t kReadBytes = std::size_t{1} << 16;

struct MessageHeader {
  std::uint32_t magic = kMessageMagic;
  std::uint32_t kind = 0;
  std::uint32_t channel = 0;
  std::uint32_t sequence = 0;
  std::int32_t place = 0;
  std::int32_t places = 0;
  std::uint64_t bytes = 0;
};
static_assert(sizeof(MessageHeader) == 32);

/// The first `count` lines of a text, the last one with everything behind it.
std::optional<std::vector<std::string>> lines_of(std::string text, std::size_t count) {
  std::vector<std::string> lines;
  while (lines.size() + 1 < count) {
    const std::size_t end = text.find('\n');
    if (end == std::string::npos) return std::nullopt;
    lines.push_back(text.substr(0, end));
    text.erase(0, end + 1);
  }
  lines.push_back(std::move(text));
  return lines;
}

std::optional<int> small_number(const std::string& text) {
  const std::optional<std::int64_t> value = parse_int64(text);
  if (!value || *value < 0 || *value > (1 << 24)) return std::nullopt;
  return static_cast<int>(*value);
}

}  // namespace

std::string Message::text() const {
  return {reinterpret_cast<const char*>(payload.data()), payload.size()};
}

void Message::set_text(const std::string& text) {
  const auto bytes = std::as_bytes(std::span(text));
  payload.assign(bytes.begin(), bytes.end());
}

std::string Introduction::text() const {
  return fmt::format("{}\n{}\n{}", rank, ranks, fingerprint);
}

std::optional<Introduction> Introduction::from(const std::string& text) {
  const auto lines = lines_of(text, 3);
  if (!lines) return std::nullopt;
  const std::optional<int> rank = small_number((*lines)[0]);
  const std::optional<int> ranks = small_number((*lines)[1]);
  if (!rank || !ranks) return std::nullopt;
  return Introduction{*rank, *ranks, one_line((*lines)[2])};
}

std::string failure_text(const RankFailure& failure) {
  return fmt::format("{}\n{}\n{}", failure.rank, static_cast<int>(failure.code), failure.what);
}

std::optional<RankFailure> failure_from(const std::string& text) {
  const auto lines = lines_of(text, 3);
  if (!lines) return std::nullopt;
  const std::optional<int> rank = small_number((*lines)[0]);
  const std::optional<int> code = small_number((*lines)[1]);
  if (!rank || !code || *code < static_cast<int>(ExitCode::kFailed) ||
      *code > static_cast<int>(ExitCode::kOutsideTolerance)) {
    return std::nullopt;
  }
  return RankFailure{*rank, static_cast<ExitCode>(*code), one_line((*lines)[2])};
}

bool send_message(const Socket& socket, const Message& message) noexcept {
  MessageHeader header;
  header.kind = static_cast<std::uint32_t>(message.kind);
  header.channel = message.group.channel;
  header.sequence = message.sequence;
  header.place = message.group.place;
  header.places = message.group.places;
  header.bytes = message.payload.size();
  return socket.send_all(std::as_bytes(std::span(&header, 1))) && socket.send_all(message.payload);
}

bool MessageReader::read_from(const Socket& socket) {
  const std::size_t before = bytes_.size();
  bytes_.resize(before + kReadBytes);
  ssize_t received = 0;
  do {
    received = recv(socket.fd(), bytes_.data() + before, kReadBytes, 0);
  } while (received < 0 && errno == EINTR);
  bytes_.resize(before + static_cast<std::size_t>(std::max<ssize_t>(received, 0)));
  return received > 0 && cut();
}

bool MessageReader::cut() {
  std::size_t begin = 0;
  while (bytes_.size() - begin >= sizeof(MessageHeader)) {
    MessageHeader header;
    std::memcpy(&header, bytes_.data() + begin, sizeof header);
    if (header.magic != kMessageMagic || header.bytes > most_bytes_ || header.kind == 0 ||
        header.kind > static_cast<std::uint32_t>(MessageKind::kBye)) {
      return false;
    }
    const auto payload = static_cast<std::size_t>(header.bytes);
    if (bytes_.size() - begin - sizeof header < payload) break;
    Message message;
    message.kind = static_cast<MessageKind>(header.kind);
    message.group = {header.channel, header.place, header.places};
    message.sequence = header.sequence;
    const auto first = bytes_.begin() + static_cast<std::ptrdiff_t>(begin + sizeof header);
    message.payload.assign(first, first + static_cast<std::ptrdiff_t>(payload));
    messages_.push_back(std::move(message));
    begin += sizeof header + payload;
  }
  bytes_.erase(bytes_.begin(), bytes_.begin() + static_cast<std::ptrdiff_t>(begin));
  return true;
}

std::optional<Message> MessageReader::next() {
  if (messages_.empty()) return std::nullopt;
  Message message = std::move(messages_.front());
  messages_.pop_front();
  return message;
}

}  // namespace shardwright::exec
