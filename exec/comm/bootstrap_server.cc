// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/bootstrap_server.h"

#include <fmt/core.h>
#include <fmt/ranges.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <exception>
#include <utility>

namespace shardwright::exec {
namespace {

// How long ranks may take to leave after one of them has failed.
constexpr double kPartingSeconds = 20;
constexpr int kPollMilliseconds = 50;
// Connections that have not said who they are, beyond one for every rank.
constexpr std::size_t kMostStrangers = 64;
// How long nobody is let in when the system has no descriptor left and no stranger holds one.
constexpr double kBreathSeconds = 0.1;
// Exchanges that wait for somebody, a rank; ranks have a handful of groups.
constexpr std::size_t kMostGatherings = 64;
constexpr const char* kOutOfStep = "it does not do the same as the other ranks";

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

BootstrapServer::BootstrapServer(Listener listener, Socket own, const Introduction& self,
                                 const BootstrapKey& key, const BootstrapTimes& times)
    : listener_(std::move(listener)),
      self_(self),
      key_(key),
      times_(times),
      join_deadline_(deadline_in(times.join_s)) {
  Peer& first = peers_.emplace_back();
  first.socket = std::move(own);
  first.socket.set_send_timeout(times_.send_s);
  first.reader.trust();
  first.rank = 0;
  if (++joined_ == self_.ranks) welcome();
  thread_ = std::thread([this] { serve(); });
}

BootstrapServer::~BootstrapServer() {
  thread_.join();
}

bool BootstrapServer::done() const {
  const bool all_gone = std::all_of(peers_.begin(), peers_.end(),
                                    [](const Peer& peer) { return peer.left || peer.rank < 0; });
  const bool rank_0_gone = peers_.front().left;
  if (failure_ || rank_0_gone) return all_gone || std::chrono::steady_clock::now() > end_;
  return joined_ == self_.ranks && all_gone;
}

void BootstrapServer::serve() noexcept {
  try {
    while (!done()) {
      wait_for_input();
      check_deadlines();
    }
  } catch (const std::exception& error) {
    // The ranks hear it when there is memory enough to tell; when not, the end of their connections
    // says that rank 0 is gone.
    try {
      announce({0, ExitCode::kFailed, fmt::format("it cannot serve the others: {}", error.what())});
    } catch (const std::exception&) {
      for (Peer& peer : peers_) peer.socket.shut_down();
    }
  }
}

void BootstrapServer::wait_for_input() {
  std::vector<pollfd> waiting;
  for (const Peer& peer : peers_) {
    waiting.push_back({peer.socket.is_open() ? peer.socket.fd() : -1, POLLIN, 0});
  }
  const std::size_t known = peers_.size();
  if (std::chrono::steady_clock::now() >= accept_again_) {
    for (const Socket& socket : listener_.sockets) waiting.push_back({socket.fd(), POLLIN, 0});
  }
  const bool any = poll(waiting.data(), waiting.size(), kPollMilliseconds) > 0;
  for (std::size_t i = 0; any && i < known; ++i) {
    if (waiting[i].revents != 0 && peers_[i].socket.is_open()) take(peers_[i]);
  }
  drop_late_strangers();
  std::erase_if(peers_, [](const Peer& peer) { return peer.rank < 0 && !peer.socket.is_open(); });
  // The last rank may just have come, and then nobody listens any more.
  for (std::size_t i = known; any && !listener_.sockets.empty() && i < waiting.size(); ++i) {
    if (waiting[i].revents != 0) accept_one(listener_.sockets[i - known]);
  }
}

void BootstrapServer::accept_one(const Socket& listening) {
  const auto strangers = static_cast<std::size_t>(
      std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.rank < 0; }));
  if (strangers >= kMostStrangers + static_cast<std::size_t>(self_.ranks)) drop_oldest_stranger();
  Socket socket = accept_from(listening);
  if (!socket.is_open()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!drop_oldest_stranger()) accept_again_ = deadline_in(kBreathSeconds);
    }
    return;
  }
  Peer& peer = peers_.emplace_back();
  peer.socket = std::move(socket);
  peer.socket.set_send_timeout(times_.send_s);
  peer.challenge = fresh_nonce();
  peer.hello_by = deadline_in(times_.stranger_s);
  Message challenge;
  challenge.kind = MessageKind::kChallenge;
  challenge.payload.assign(peer.challenge.begin(), peer.challenge.end());
  send_message(peer.socket, challenge);
}

bool BootstrapServer::drop_oldest_stranger() {
  const auto oldest = std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
    return peer.rank < 0 && peer.socket.is_open();
  });
  if (oldest == peers_.end()) return false;
  oldest->socket.close();
  return true;
}

void BootstrapServer::drop_late_strangers() {
  const auto now = std::chrono::steady_clock::now();
  const bool all_are_here = joined_ == self_.ranks;
  for (Peer& peer : peers_) {
    if (peer.rank < 0 && (all_are_here || now > peer.hello_by)) peer.socket.close();
  }
}

void BootstrapServer::take(Peer& peer) {
  const bool alive = peer.reader.read_from(peer.socket);
  while (std::optional<Message> message = peer.reader.next()) {
    if (peer.rank < 0) {
      greet(peer, *message);
    } else {
      take_from_rank(peer, std::move(*message));
    }
    if (!peer.socket.is_open()) return;
  }
  if (!alive) lose(peer);
}

void BootstrapServer::take_from_rank(Peer& peer, Message message) {
  switch (message.kind) {
    case MessageKind::kExchange:
      return gather(peer, std::move(message));
    case MessageKind::kFailure:
      if (const auto failure = failure_from(message.text())) {
        announce({peer.rank, failure->code, failure->what});
      }
      return;
    case MessageKind::kBye:
      peer.left = true;
      if (peer.rank == 0) end_ = deadline_in(times_.exchange_s);
      return;
    default:
      return announce({peer.rank, ExitCode::kFailed, kOutOfStep});
  }
}

void BootstrapServer::greet(Peer& peer, const Message& message) {
  const std::optional<Hello> hello = message.kind == MessageKind::kHello
                                         ? check_hello(key_, peer.challenge, message.payload)
                                         : std::nullopt;
  const auto introduction = hello ? Introduction::from(hello->text) : std::nullopt;
  if (!introduction) return peer.socket.close();
  Message accepted;
  accepted.kind = MessageKind::kAccepted;
  const Digest proof = acceptance(key_, peer.challenge, hello->nonce);
  accepted.payload.assign(proof.begin(), proof.end());
  send_message(peer.socket, accepted);
  introduce(peer, *introduction);
}

void BootstrapServer::introduce(Peer& peer, const Introduction& peer_says) {
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
  peer.reader.trust();
  if (++joined_ == self_.ranks) welcome();
}

void BootstrapServer::welcome() {
  listener_.sockets.clear();
  Message message;
  message.kind = MessageKind::kWelcome;
  send_all(message);
}

void BootstrapServer::gather(const Peer& peer, Message message) {
  const BootstrapGroup& group = message.group;
  // A rank waits for its welcome, asks for places that exist and for one answer a group at a time.
  if (joined_ < self_.ranks || group.places < 1 || group.places > self_.ranks || group.place < 0 ||
      group.place >= group.places ||
      gatherings_.size() > kMostGatherings * static_cast<std::size_t>(self_.ranks)) {
    return announce({peer.rank, ExitCode::kFailed, kOutOfStep});
  }
  const auto key = std::tuple(group.channel, message.sequence);
  const bool is_new = !gatherings_.contains(key);
  Gathering& gathering = gatherings_[key];
  if (is_new) {
    gathering.parts.resize(static_cast<std::size_t>(group.places));
    gathering.ranks.assign(gathering.parts.size(), -1);
    gathering.deadline = deadline_in(times_.exchange_s);
  }
  const auto place = static_cast<std::size_t>(group.place);
  if (static_cast<std::size_t>(group.places) != gathering.parts.size() ||
      gathering.ranks[place] >= 0) {
    return announce({peer.rank, ExitCode::kFailed, kOutOfStep});
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

std::string BootstrapServer::missing() const {
  std::vector<int> lacking;
  for (int rank = 0; rank < self_.ranks; ++rank) {
    const bool here = std::any_of(peers_.begin(), peers_.end(),
                                  [&](const Peer& peer) { return peer.rank == rank; });
    if (!here) lacking.push_back(rank);
  }
  return ranks_have(lacking);
}

void BootstrapServer::check_deadlines() {
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

void BootstrapServer::lose(Peer& peer) {
  peer.socket.close();
  const bool was_member = peer.rank >= 0 && !peer.left;
  peer.left = true;
  if (was_member) {
    announce({peer.rank, ExitCode::kFailed, "its process ended without a word"});
  }
}

void BootstrapServer::announce(const RankFailure& failure) {
  if (failure_) return;
  failure_ = failure;
  end_ = deadline_in(kPartingSeconds);
  Message message;
  message.kind = MessageKind::kFailure;
  message.set_text(failure_text(failure));
  send_all(message);
}

void BootstrapServer::send_all(const Message& message) {
  // A peer that takes nothing shows at the next reading: its connection is ended.
  for (const Peer& peer : peers_) {
    if (peer.rank >= 0 && peer.socket.is_open()) send_message(peer.socket, message);
  }
}

}  // namespace shardwright::exec
