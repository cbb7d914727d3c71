// What ranks and the meeting's server say to each other: a header of fixed size and its payload.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "exec/comm/meeting.h"
#include "exec/comm/socket.h"

namespace shardwright::exec {

enum class MessageKind : std::uint32_t {
  kHello = 1,  // a rank introduces itself: Introduction
  kWelcome,    // all ranks are there
  kOtherRun,   // the server belongs to another run: try again later
  kExchange,   // what a place of a group gives
  kReply,      // what all places gave
  kFailure,    // to the server: this rank failed; from it: the first one that did
  kBye         // the rank needs nobody any more
};

struct Message {
  MessageKind kind = MessageKind::kHello;
  MeetingGroup group;
  std::uint32_t sequence = 0;
  std::vector<std::byte> payload;

  std::string text() const;
  void set_text(const std::string& text);
};

/// Who a rank is and what it believes of the job.
struct Introduction {
  int rank = 0;
  int ranks = 1;
  std::string run;          // tells runs apart that meet at the same place; may be empty
  std::string fingerprint;  // of everything that must be the same on all ranks

  std::string text() const;
  /// None when the text is no introduction.
  static std::optional<Introduction> from(const std::string& text);
};

std::string failure_text(const RankFailure& failure);
std::optional<RankFailure> failure_from(const std::string& text);

bool send_message(const Socket& socket, const Message& message) noexcept;

/// Cuts what arrives into messages.
class MessageReader {
 public:
  /// Reads once; false when the connection has ended or speaks something else.
  bool read_from(const Socket& socket);
  std::optional<Message> next();

 private:
  bool cut();

  std::vector<std::byte> bytes_;
  std::deque<Message> messages_;
};

}  // namespace shardwright::exec
