// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/tcp_bootstrap.h"

#include <fmt/core.h>

#include <algorithm>
#include <condition_variable>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "exec/communicator.h"
#include "sim/core/base/check.h"

namespace shardwright::exec {
namespace {

constexpr std::chrono::milliseconds kRetry{50};

class TcpBootstrap final : public Bootstrap {
 public:
  TcpBootstrap(std::unique_ptr<BootstrapServer> server, Socket socket, MessageReader reader,
               const Introduction& self, const BootstrapTimes& times)
      : server_(std::move(server)),
        socket_(std::move(socket)),
        reader_(std::move(reader)),
        rank_(self.rank),
        ranks_(self.ranks),
        times_(times),
        thread_([this] { listen(); }) {}

  ~TcpBootstrap() override {
    Message bye;
    bye.kind = MessageKind::kBye;
    {
      const std::lock_guard lock(send_mutex_);
      send_message(socket_, bye);
    }
    {
      const std::lock_guard lock(mutex_);
      leaving_ = true;
    }
    server_.reset();  // waits for the others
    socket_.shut_down();
    thread_.join();
  }

  int rank() const override { return rank_; }
  int ranks() const override { return ranks_; }

  void exchange(const BootstrapGroup& group, std::span<const std::byte> mine,
                std::span<std::byte> all) override {
    SHARDWRIGHT_CHECK(all.size() == mine.size() * static_cast<std::size_t>(group.places),
                      "{} bytes from each of {} ranks into {}", mine.size(), group.places,
                      all.size());
    Message message;
    message.kind = MessageKind::kExchange;
    message.group = group;
    message.payload.assign(mine.begin(), mine.end());
    std::unique_lock lock(mutex_);
    message.sequence = next_[group.channel]++;
    const auto key = std::pair(group.channel, message.sequence);
    lock.unlock();
    {
      const std::lock_guard sending(send_mutex_);
      send_message(socket_, message);  // a connection that is lost shows below
    }
    lock.lock();
    // The server tells who lacks; when it does not speak either, rank 0 hangs.
    const double patience_s = times_.exchange_s + times_.answer_s;
    const bool answered = changed_.wait_until(lock, deadline_in(patience_s),
                                              [&] { return replies_.contains(key) || failure_; });
    if (!answered) {
      failure_ = RankFailure{0, ExitCode::kFailed,
                             fmt::format("it has not answered for {} s", patience_s)};
      changed_.notify_all();
    }
    const auto reply = replies_.find(key);
    if (reply == replies_.end()) throw Aborted();
    SHARDWRIGHT_CHECK(reply->second.size() == all.size(), "{} bytes of an exchange, expected {}",
                      reply->second.size(), all.size());
    std::copy(reply->second.begin(), reply->second.end(), all.begin());
    replies_.erase(reply);
  }

  void fail(ExitCode code, const std::string& what) noexcept override {
    const RankFailure mine{rank_, code, what};
    Message message;
    message.kind = MessageKind::kFailure;
    message.set_text(failure_text(mine));
    {
      const std::lock_guard lock(send_mutex_);
      send_message(socket_, message);
    }
    // The server decides which failure was the first.
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(2), [&] { return failure_.has_value(); });
    if (!failure_) failure_ = mine;
    changed_.notify_all();
  }

  std::optional<RankFailure> failure() const override {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void listen() {
    while (true) {
      while (std::optional<Message> message = reader_.next()) take(*message);
      if (!reader_.read_from(socket_)) break;
    }
    const std::lock_guard lock(mutex_);
    if (!leaving_ && !failure_) {
      failure_ = RankFailure{0, ExitCode::kFailed, "its process ended without a word"};
    }
    changed_.notify_all();
  }

  void take(Message& message) {
    const std::lock_guard lock(mutex_);
    if (message.kind == MessageKind::kReply) {
      replies_[std::pair(message.group.channel, message.sequence)] = std::move(message.payload);
    } else if (message.kind == MessageKind::kFailure && !failure_) {
      failure_ = failure_from(message.text());
    }
    changed_.notify_all();
  }

  std::unique_ptr<BootstrapServer> server_;  // rank 0
  Socket socket_;
  MessageReader reader_;
  int rank_;
  int ranks_;
  BootstrapTimes times_;
  std::mutex send_mutex_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::uint32_t, std::uint32_t> next_;
  std::map<std::pair<std::uint32_t, std::uint32_t>, std::vector<std::byte>> replies_;
  std::optional<RankFailure> failure_;
  bool leaving_ = false;
  std::thread thread_;
};

/// The first answer of the server, or none when the connection ends or the deadline comes.
std::optional<Message> first_answer(const Socket& socket, MessageReader& reader,
                                    Deadline deadline) {
  while (true) {
    if (std::optional<Message> message = reader.next()) return message;
    if (!socket.await_input(deadline) || !reader.read_from(socket)) return reader.next();
  }
}

Listener listen_at(const BootstrapPlace& place) {
  try {
    return listen_on(place.host, place.port);
  } catch (const std::system_error& error) {
    const bool elsewhere = error.code() == std::errc::address_not_available;
    throw Error(elsewhere
                    ? fmt::format("rank 0 cannot listen at {}: {} is no address of this machine, "
                                  "expected one",
                                  place.name, place.host)
                    : fmt::format("rank 0 cannot listen on port {}: {}; {}", place.port,
                                  error.code().message(), place.port_advice),
                ExitCode::kFailed);
  }
}

[[noreturn]] void throw_failure(const RankFailure& failure, int ranks) {
  throw Error(fmt::format("rank {} of {}: {}", failure.rank, ranks, failure.what), failure.code);
}

std::unique_ptr<Bootstrap> open_bootstrap(const BootstrapPlace& place, const Introduction& self,
                                          const BootstrapTimes& times) {
  Listener listener = listen_at(place);
  BootstrapAddress address{host_name(), listener.port, {}};
  if (place.publish) {
    address.secret = random_secret();
    place.publish(address);
  }
  auto [own, served] = socket_pair();
  auto server =
      std::make_unique<BootstrapServer>(std::move(listener), std::move(served), self,
                                        bootstrap_key(place.key, address.secret, place.run), times);
  MessageReader reader;
  reader.trust();
  const auto answer = first_answer(own, reader, deadline_in(times.join_s + 2 * times.answer_s));
  if (answer && answer->kind == MessageKind::kWelcome) {
    return std::make_unique<TcpBootstrap>(std::move(server), std::move(own), std::move(reader),
                                          self, times);
  }
  const auto failure = answer ? failure_from(answer->text()) : std::nullopt;
  own.close();  // lets the server end
  throw_failure(failure.value_or(RankFailure{0, ExitCode::kFailed, "the rendezvous ended"}),
                self.ranks);
}

/// Challenge, hello and proof; false when what answers does not know the key, or sends no challenge
/// within `stranger_s`. Rank 0 may count this rank as soon as it has said hello, so that hanging up
/// from then on would end the job: it may take as long to answer as to join.
bool is_rank_0(const Socket& socket, MessageReader& reader, const Introduction& self,
               const BootstrapKey& key, double stranger_s, Deadline deadline) {
  const auto challenge = first_answer(socket, reader, std::min(deadline, deadline_in(stranger_s)));
  if (!challenge || challenge->kind != MessageKind::kChallenge) return false;
  const Nonce nonce = fresh_nonce();
  Message hello;
  hello.kind = MessageKind::kHello;
  hello.payload = make_hello(key, challenge->payload, nonce, self.text());
  send_message(socket, hello);
  const auto accepted = first_answer(socket, reader, deadline);
  return accepted && accepted->kind == MessageKind::kAccepted &&
         same_digest(acceptance(key, challenge->payload, nonce), accepted->payload);
}

/// Null, and in `why` the reason, as long as rank 0 of this run does not answer at the address.
std::unique_ptr<Bootstrap> try_to_join(const BootstrapPlace& place, const BootstrapAddress& address,
                                       const Introduction& self, const BootstrapTimes& times,
                                       Deadline deadline, std::string& why) {
  Socket socket = connect_to(address.host, address.port, deadline, why);
  if (!socket.is_open()) return nullptr;
  socket.set_send_timeout(times.send_s);
  MessageReader reader;
  const BootstrapKey key = bootstrap_key(place.key, address.secret, place.run);
  if (!is_rank_0(socket, reader, self, key, times.stranger_s, deadline)) {
    why = "what answers there is not rank 0 of this run, or has another key";
    return nullptr;
  }
  reader.trust();
  const auto answer = first_answer(socket, reader, deadline);
  if (answer && answer->kind == MessageKind::kWelcome) {
    return std::make_unique<TcpBootstrap>(nullptr, std::move(socket), std::move(reader), self,
                                          times);
  }
  if (answer && answer->kind == MessageKind::kFailure) {
    if (const auto failure = failure_from(answer->text())) throw_failure(*failure, self.ranks);
  }
  why = "rank 0 ended before all ranks were there";
  return nullptr;
}

}  // namespace

std::unique_ptr<Bootstrap> join_bootstrap(const BootstrapPlace& place, const Introduction& self,
                                          const BootstrapTimes& times) {
  if (self.rank == 0) return open_bootstrap(place, self, times);
  const Deadline deadline = deadline_in(times.join_s + times.answer_s);
  std::string why;
  do {
    if (const std::optional<BootstrapAddress> address = place.find(why)) {
      if (auto bootstrap = try_to_join(place, *address, self, times, deadline, why))
        return bootstrap;
    }
    std::this_thread::sleep_for(kRetry);
  } while (std::chrono::steady_clock::now() < deadline);
  throw Error(fmt::format("rank {} of {} did not find rank 0 at {} within {} s: {}", self.rank,
                          self.ranks, place.name, times.join_s, why),
              ExitCode::kFailed);
}

}  // namespace shardwright::exec
