// SPDX-License-Identifier: Apache-2.0
// What ranks and the rendezvous's server say to each other: a header of fixed size and its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/comm/bootstrap.h"
#include "exec/comm/socket.h"

namespace shardwright::exec {

enum class MessageKind : std::uint32_t {
  kChallenge = 1,  // the server's first word: a nonce
  kHello,     // a rank introduces itself: nonce, proof, Introduction (exec/comm/bootstrap_key.h)
  kAccepted,  // the server's proof that it knows the key, too
  kWelcome,   // all ranks are there
  kExchange,  // what a place of a group gives
  kReply,     // what all places gave
  kFailure,   // to the server: this rank failed; from it: the first one that did
  kBye        // the rank needs nobody any more
};

struct Message {
  MessageKind kind = MessageKind::kHello;
  BootstrapGroup group;
  std::uint32_t sequence = 0;
  std::vector<std::byte> payload;

  std::string text() const;
  void set_text(const std::string& text);
};

/// Who a rank is and what it believes of the job.
struct Introduction {
  int rank = 0;
  int ranks = 1;
  std::string fingerprint;  // of everything that must be the same on all ranks

  std::string text() const;
  /// None when the text is no introduction.
  static std::optional<Introduction> from(const std::string& text);
};

std::string failure_text(const RankFailure& failure);
/// None when the text is no failure: a rank below zero, or an exit code that is none of a failure.
/// The sentence is cut to 4 KiB, and what a terminal would obey is replaced.
std::optional<RankFailure> failure_from(const std::string& text);

bool send_message(const Socket& socket, const Message& message) noexcept;

/// The largest payloads that are taken: from whoever connects, and from ranks that are known.
inline constexpr std::size_t kMostStrangerBytes = std::size_t{16} << 10;
inline constexpr std::size_t kMostMemberBytes = std::size_t{1} << 30;

/// Cuts what arrives into messages.
class MessageReader {
 public:
  /// The other side has shown who it is: from now on its messages may be large.
  void trust() { most_bytes_ = kMostMemberBytes; }
  /// Reads once; false when the connection has ended, speaks something else, or announces a
  /// message that is too large.
  bool read_from(const Socket& socket);
  std::optional<Message> next();

 private:
  bool cut();

  std::size_t most_bytes_ = kMostStrangerBytes;
  std::vector<std::byte> bytes_;
  std::deque<Message> messages_;
};

}  // namespace shardwright::exec
