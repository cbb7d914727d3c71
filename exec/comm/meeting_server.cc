#include "exec/comm/meeting_server.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <utility>

namespace shardwright::exec {
namespace {

// How long ranks may take to leave after one of them has failed.
constexpr double kPartingSeconds = 20;
constexpr int kPollMilliseconds = 50;

/// "rank 2 has", "ranks 1, 3 have"; long lists are cut.
std::string ranks_have(const std::vector<int>& ranks) {
  constexpr std::size_t kMost = 8;
  const std::vector<int> shown(
      ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(std::min(ranks.size(), kMost)));
  return fmt::format("rank{} {}{} {}", ranks.size() == 1 ? "" : "s", fmt::join(shown, ", "),
                     ranks.size() > kMost ? fmt::format(" and {} more", ranks.size() - kMost) : "",
                     ranks.size() == 1 ? "has" : "have");
}

}  // namespace

MeetingServer::MeetingServer(Listener listener, Socket own, const Introduction& self,
                             const MeetingTimes& times)
    : listener_(std::move(listener)),
      self_(self),
      times_(times),
      join_deadline_(deadline_in(times.join_s)) {
  peers_.emplace_back().socket = std::move(own);
  thread_ = std::thread([this] { serve(); });
}

MeetingServer::~MeetingServer() {
  thread_.join();
}

bool MeetingServer::done() const {
  const bool all_gone = std::all_of(peers_.begin(), peers_.end(),
                                    [](const Peer& peer) { return peer.left || peer.rank < 0; });
  if (failure_) return all_gone || std::chrono::steady_clock::now() > end_;
  return joined_ == self_.ranks && all_gone;
}

void MeetingServer::serve() {
  while (!done()) {
    wait_for_input();
    check_deadlines();
  }
}

void MeetingServer::wait_for_input() {
  std::vector<pollfd> waiting{{listener_.socket.fd(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    waiting.push_back({peer.socket.is_open() ? peer.socket.fd() : -1, POLLIN, 0});
  }
  if (poll(waiting.data(), waiting.size(), kPollMilliseconds) <= 0) return;
  for (std::size_t i = 0; i + 1 < waiting.size(); ++i) {
    if (waiting[i + 1].revents != 0) take(peers_[i]);
  }
  std::erase_if(peers_, [](const Peer& peer) { return peer.rank < 0 && !peer.socket.is_open(); });
  if (waiting[0].revents == 0) return;
  Socket socket = accept_from(listener_);
  if (socket.is_open()) peers_.emplace_back().socket = std::move(socket);
}

void MeetingServer::take(Peer& peer) {
  const bool alive = peer.reader.read_from(peer.socket);
  while (std::optional<Message> message = peer.reader.next()) {
    switch (message->kind) {
      case MessageKind::kHello:
        if (const auto introduction = Introduction::from(message->text())) {
          introduce(peer, *introduction);
        }
        break;
      case MessageKind::kExchange:
        if (peer.rank >= 0) gather(peer, std::move(*message));
        break;
      case MessageKind::kFailure:
        if (const auto failure = failure_from(message->text())) announce(*failure);
        break;
      case MessageKind::kBye:
        peer.left = true;
        break;
      default:
        break;
    }
    if (!peer.socket.is_open()) return;
  }
  if (!alive) lose(peer);
}

void MeetingServer::introduce(Peer& peer, const Introduction& peer_says) {
  const auto reply = [&peer](MessageKind kind) {
    Message message;
    message.kind = kind;
    send_message(peer.socket, message);
  };
  if (peer_says.run != self_.run) {
    reply(MessageKind::kOtherRun);
    return peer.socket.close();
  }
  peer.rank = peer_says.rank;
  const bool twice = std::count_if(peers_.begin(), peers_.end(), [&](const Peer& other) {
                       return other.rank == peer_says.rank;
                     }) > 1;
  const auto refuse = [&](const std::string& what) {
    announce({peer_says.rank, ExitCode::kBadInput, what});
  };
  if (peer_says.ranks != self_.ranks) {
    return refuse(fmt::format("it was started as one of {} ranks, rank 0 as one of {}",
                              peer_says.ranks, self_.ranks));
  }
  if (peer_says.rank >= self_.ranks || twice) {
    return refuse(twice ? "two processes were started as this rank"
                        : fmt::format("there are only {} ranks", self_.ranks));
  }
  if (peer_says.fingerprint != self_.fingerprint) {
    return refuse(fmt::format("it runs '{}', rank 0 runs '{}': expected the same on all ranks",
                              peer_says.fingerprint, self_.fingerprint));
  }
  if (failure_) {
    Message late;
    late.kind = MessageKind::kFailure;
    late.set_text(failure_text(*failure_));
    send_message(peer.socket, late);
    return;
  }
  if (++joined_ < self_.ranks) return;
  Message welcome;
  welcome.kind = MessageKind::kWelcome;
  send_all(welcome);
}

void MeetingServer::gather(const Peer& peer, Message message) {
  const MeetingGroup& group = message.group;
  const auto key = std::tuple(group.channel, message.sequence);
  const bool is_new = !gatherings_.contains(key);
  Gathering& gathering = gatherings_[key];
  if (is_new) {
    gathering.parts.resize(static_cast<std::size_t>(std::max(group.places, 1)));
    gathering.ranks.assign(gathering.parts.size(), -1);
    gathering.deadline = deadline_in(times_.exchange_s);
  }
  const auto place = static_cast<std::size_t>(group.place);
  if (static_cast<std::size_t>(group.places) != gathering.parts.size() ||
      place >= gathering.parts.size() || gathering.ranks[place] >= 0) {
    return announce({peer.rank, ExitCode::kFailed, "it does not do the same as the other ranks"});
  }
  gathering.parts[place] = std::move(message.payload);
  gathering.ranks[place] = peer.rank;
  if (++gathering.arrived < group.places) return;

  Message reply;
  reply.kind = MessageKind::kReply;
  reply.sequence = message.sequence;
  for (const std::vector<std::byte>& part : gathering.parts) {
    reply.payload.insert(reply.payload.end(), part.begin(), part.end());
  }
  for (std::size_t i = 0; i < gathering.ranks.size(); ++i) {
    const auto to = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& other) {
      return other.rank == gathering.ranks[i] && other.socket.is_open();
    });
    if (to == peers_.end()) continue;
    reply.group = {group.channel, static_cast<int>(i), group.places};
    send_message(to->socket, reply);
  }
  gatherings_.erase(key);
}

std::string MeetingServer::missing() const {
  std::vector<int> lacking;
  for (int rank = 0; rank < self_.ranks; ++rank) {
    const bool here = std::any_of(peers_.begin(), peers_.end(),
                                  [&](const Peer& peer) { return peer.rank == rank; });
    if (!here) lacking.push_back(rank);
  }
  return ranks_have(lacking);
}

void MeetingServer::check_deadlines() {
  if (failure_) return;
  const auto now = std::chrono::steady_clock::now();
  if (joined_ < self_.ranks && now > join_deadline_) {
    return announce({0, ExitCode::kFailed,
                     fmt::format("{} not come within {} s; expected {} ranks", missing(),
                                 times_.join_s, self_.ranks)});
  }
  for (const auto& [key, gathering] : gatherings_) {
    if (now < gathering.deadline) continue;
    std::vector<int> waiting;
    for (const int rank : gathering.ranks) {
      if (rank >= 0) waiting.push_back(rank);
    }
    return announce({waiting.front(), ExitCode::kFailed,
                     fmt::format("{} waited {} s for the other ranks", ranks_have(waiting),
                                 times_.exchange_s)});
  }
}

void MeetingServer::lose(Peer& peer) {
  peer.socket.close();
  const bool was_member = peer.rank >= 0 && !peer.left;
  peer.left = true;
  if (was_member) {
    announce({peer.rank, ExitCode::kFailed, "its process ended without a word"});
  }
}

void MeetingServer::announce(const RankFailure& failure) {
  if (failure_) return;
  failure_ = failure;
  end_ = deadline_in(kPartingSeconds);
  Message message;
  message.kind = MessageKind::kFailure;
  message.set_text(failure_text(failure));
  send_all(message);
}

void MeetingServer::send_all(const Message& message) {
  for (const Peer& peer : peers_) {
    if (peer.rank >= 0 && peer.socket.is_open()) send_message(peer.socket, message);
  }
}

}  // namespace shardwright::exec
