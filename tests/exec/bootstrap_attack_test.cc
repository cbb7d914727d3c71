// SPDX-License-Identifier: Apache-2.0
// Guards exec/comm/bootstrap.h against whoever reaches rank 0's port: what an audit did to a
// rendezvous, on loopback. A stranger does not know the key; a false rank does, and still may not
// do more than end the job with a sentence.
#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <limits>

#include "exec/communicator.h"
#include "tests/exec/bootstrap_support.h"

namespace shardwright::exec {
namespace {

using shardwright::testing::at_port;
using shardwright::testing::FreePort;
using shardwright::testing::in_processes;
using shardwright::testing::launched;
using shardwright::testing::Marks;
using shardwright::testing::Sayings;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kKey = "what the ranks of this test know";
constexpr double kPatienceSeconds = 200;  // seconds that no test waits out
const std::string kEscapes = "\x1b]0;owned\x07 all is well";

Rendezvous secret_place(int port) {
  Rendezvous rendezvous = at_port(port);
  rendezvous.key = kKey;
  rendezvous.run = "job 17";
  return rendezvous;
}

/// Somebody who has read the source.
class Peer {
 public:
  explicit Peer(int port) {
    std::string why;
    const Deadline deadline = deadline_in(kPatienceSeconds);
    while (!socket_.is_open() && std::chrono::steady_clock::now() < deadline) {
      socket_ = connect_to("127.0.0.1", port, deadline, why);
      if (!socket_.is_open()) usleep(5000);
    }
    socket_.set_send_timeout(2);
  }

  bool is_open() const { return socket_.is_open(); }
  const Socket& socket() const { return socket_; }
  void say(MessageKind kind, const std::string& text, const BootstrapGroup& group = {}) {
    Message message;
    message.kind = kind;
    message.group = group;
    message.set_text(text);
    send_message(socket_, message);
  }
  /// The next message, or none when the server has hung up.
  std::optional<Message> hear(double seconds = kPatienceSeconds) {
    while (true) {
      if (auto message = reader_.next()) return message;
      if (!socket_.await_input(deadline_in(seconds)) || !reader_.read_from(socket_)) {
        return reader_.next();
      }
    }
  }
  void hello(int rank, int ranks, const BootstrapKey& key,
             const std::string& fingerprint = "plan") {
    if (challenge_.empty()) {
      if (const auto message = hear()) challenge_ = message->payload;
    }
    Message message;
    message.kind = MessageKind::kHello;
    message.payload =
        make_hello(key, challenge_, fresh_nonce(), Introduction{rank, ranks, fingerprint}.text());
    send_message(socket_, message);
  }
  /// How many messages came until the server hung up; more than `most` are not awaited.
  int heard_until_the_end(int most = 100) {
    int count = 0;
    while (count < most && hear(5)) ++count;
    return count;
  }

 private:
  Socket socket_;
  MessageReader reader_;
  std::vector<std::byte> challenge_;
};

const BootstrapKey kGuess = bootstrap_key("", "", "job 17");  // the launcher's words are no secret
const BootstrapKey kTrue = bootstrap_key(kKey, "", "job 17");

/// Two ranks meet and exchange while a third process does what `attack` does. With `joining`, rank
/// 1 comes only after the attack has begun; else the attack waits until the ranks exchange.
Sayings ranks_under(const std::function<void(int port)>& attack, bool joining) {
  const FreePort port;
  const Marks marks;
  return in_processes(3, [&](int rank) {
    if (rank == 2) {
      if (!joining) marks.await("meeting");
      marks.set("attacking");
      attack(port);
      marks.set("attacked");
      return;
    }
    if (joining && rank == 1) {
      marks.await("attacking");
      usleep(300'000);
    }
    const auto bootstrap = meet(secret_place(port), launched(rank, 2), "plan", {200, 200, 5, 1, 1});
    run_rank(*bootstrap, [&] {
      marks.set("meeting");
      // On until the stranger has done his worst.
      int attacked = 0;
      while (attacked == 0) {
        const int mine = rank == 0 && marks.has("attacked") ? 1 : 0;
        std::vector<int> all(2);
        bootstrap->exchange({0, rank, 2}, std::as_bytes(std::span(&mine, 1)),
                            std::as_writable_bytes(std::span(all)));
        if (all[1] != 0) throw Error("somebody else speaks for rank 1");
        attacked = all[0];
        usleep(2000);
      }
    });
  });
}

struct Attack {
  const char* name;
  std::function<void(int port)> act;
};

void announce_much(int port) {
  Peer stranger(port);
  const std::uint32_t head[] = {0x53574d32, 2, 0, 0, 0, 1, 0, 4};  // 16 GiB follow
  stranger.socket().send_all(std::as_bytes(std::span(head)));
  const std::vector<std::byte> chunk(std::size_t{1} << 20);
  for (int sent = 0; stranger.socket().send_all(chunk); ++sent) {
    if (sent > 256) throw Error("rank 0 takes 256 MiB of a stranger");
  }
}

void block(int port, int failures) {
  std::vector<Peer> deaf;
  for (int i = 0; i < 4; ++i) {
    Peer& peer = deaf.emplace_back(port);
    if (!peer.is_open()) return;
    for (int n = 0; n < failures; ++n) {
      peer.say(MessageKind::kFailure, "1\n1\n" + std::string(15'000, 'A'));
      peer.hello(1, 2, kGuess);
    }
  }
  usleep(300'000);
}

void refuse_answers(int port, const BootstrapKey& key) {
  Peer stranger(port);
  if (!stranger.is_open()) return;
  stranger.hello(1, 2, key, "another plan");
  // The challenge was read by hello(); nothing else is told to whom does not know the key.
  if (stranger.heard_until_the_end() > 0) throw Error("a stranger is answered");
}

const std::vector<Attack>& attacks() {
  static const std::vector<Attack> all{
      {"kill 1", [](int port) { Peer(port).say(MessageKind::kFailure, "1\n1\nkilled"); }},
      {"kill 0", [](int port) { Peer(port).say(MessageKind::kFailure, "1\n0\n" + kEscapes); }},
      {"dup", [](int port) { Peer(port).hello(1, 2, kGuess); }},
      {"rank 0", [](int port) { Peer(port).hello(0, 2, kGuess); }},
      {"neg",
       [](int port) {
         Peer stranger(port);
         stranger.hello(1, 2, kGuess);
         stranger.say(MessageKind::kExchange, "x", {77, 0, std::numeric_limits<int>::max()});
         stranger.say(MessageKind::kExchange, "x", {77, -1, -1});
       }},
      {"spoof",
       [](int port) {
         Peer stranger(port);
         stranger.hello(1, 2, kGuess);
         for (int i = 0; i < 5; ++i) stranger.say(MessageKind::kExchange, "666.", {0, 1, 2});
         if (stranger.heard_until_the_end() > 0) throw Error("a stranger is let in");
       }},
      {"prehello",
       [](int port) {
         Peer stranger(port);
         stranger.hello(1, 2, kGuess);
         stranger.hello(1, 2, kGuess);
       }},
      {"memory", announce_much},
      {"block", [](int port) { block(port, 1); }},
      {"block2", [](int port) { block(port, 200); }},
      {"scan",
       [](int port) {
         refuse_answers(port, bootstrap_key("", "", "another job"));
         refuse_answers(port, kGuess);
       }},
      {"fingerprint", [](int port) { refuse_answers(port, kGuess); }},
      {"http",
       [](int port) {
         for (int i = 0; i < 20; ++i) {
           const std::string words = "GET / HTTP/1.1\r\nHost: shardwright, whoever that may be\r\n";
           Peer(port).socket().send_all(std::as_bytes(std::span(words)));
         }
       }},
      {"silence", [](int port) {
         Peer stranger(port);
         const auto challenge = stranger.hear();
         if (challenge && stranger.hear()) throw Error("a stranger is answered");
       }}};
  return all;
}

TEST(BootstrapAttack, AStrangerChangesNothingWhileRanksJoin) {
  for (const Attack& attack : attacks()) {
    EXPECT_THAT(ranks_under(attack.act, true), ::testing::Each("done")) << attack.name;
  }
}

TEST(BootstrapAttack, NobodyListensOnceAllAreThere) {
  const auto said = ranks_under(
      [](int port) {
        std::string why;
        if (connect_to("127.0.0.1", port, deadline_in(2), why).is_open()) {
          throw Error("somebody still listens");
        }
      },
      false);
  EXPECT_THAT(said, ::testing::Each("done"));
}

/// Leaves this process `count` descriptors beyond those that are open.
void leave_descriptors(int count) {
  std::vector<int> next;
  for (int i = 0; i < count; ++i) next.push_back(dup(STDERR_FILENO));
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = static_cast<rlim_t>(next.back()) + 1;
  for (const int fd : next) close(fd);
  setrlimit(RLIMIT_NOFILE, &limit);
}

/// Gives a process as many again as it may have.
void leave_all_descriptors(pid_t pid) {
  rlimit limit{};
  if (prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) != 0) throw Error("no limit is told");
  limit.rlim_cur = limit.rlim_max;
  if (prlimit(pid, RLIMIT_NOFILE, &limit, nullptr) != 0) throw Error("no limit is set");
}

/// Whether all threads of a process sleep.
bool sleeps(const std::string& pid) {
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + pid + "/task")) {
    const std::string stat = read_file(task.path() / "stat", 1 << 12);
    if (stat[stat.rfind(')') + 2] != 'S') return false;
  }
  return true;
}

/// Whether a process is seen to sleep for a hundredth of a second, however long a busy machine lets
/// it wait for its turn. One that spins never is.
bool rests(const std::string& pid) {
  int seen = 0;
  for (int i = 0; i < 5'000 && seen < 10; ++i) {
    seen = sleeps(pid) ? seen + 1 : 0;
    usleep(1000);
  }
  return seen == 10;
}

constexpr int kDescriptorsOfRank0 = 3;  // a listener and its own connection
const BootstrapTimes kStrangersMayStay{kPatienceSeconds, kPatienceSeconds, 5, 1, 3600};

TEST(BootstrapAttack, ConnectionsThatSayNothingKeepNobodyOut) {
  const FreePort port;
  const Marks marks;
  const auto said = in_processes(3, [&](int rank) {
    if (rank == 2) {
      const std::string rank_0 = marks.text("rank 0");
      std::vector<Peer> held;
      for (int i = 0; i < 100; ++i) held.emplace_back(port);
      if (!rests(rank_0)) throw Error("rank 0 spins");
      marks.set("held");
      marks.await("met");
      return;
    }
    if (rank == 0) {
      marks.set("rank 0", std::to_string(getpid()));
      leave_descriptors(kDescriptorsOfRank0 + 20);
    } else {
      marks.await("held");
    }
    // Strangers may stay for an hour, but the oldest one makes room for the next.
    const auto bootstrap = meet(secret_place(port), launched(rank, 2), "plan", kStrangersMayStay);
    leave_all_descriptors(getpid());  // UBSan opens a pipe before it looks at an object's type
    marks.set(rank == 0 ? "met by 0" : "met");
  });
  EXPECT_THAT(said, ::testing::Each("done"));
}

TEST(BootstrapAttack, ARank0WithoutDescriptorsRestsUntilItHasSome) {
  const FreePort port;
  const Marks marks;
  const auto said = in_processes(3, [&](int rank) {
    if (rank == 2) {
      const std::string rank_0 = marks.text("rank 0");
      const Peer waiting(port);
      if (!rests(rank_0)) throw Error("rank 0 spins");
      leave_all_descriptors(std::stoi(rank_0));
      marks.set("more");
      return;
    }
    if (rank == 0) {
      marks.set("rank 0", std::to_string(getpid()));
      leave_descriptors(kDescriptorsOfRank0);
    } else {
      marks.await("more");
    }
    meet(secret_place(port), launched(rank, 2), "plan", kStrangersMayStay);
  });
  EXPECT_THAT(said, ::testing::Each("done"));
}

/// Whoever knows the key can end the job; rank 0 must not abort, hang, or end with success.
TEST(BootstrapAttack, AFalseRankEndsTheJobWithASentence) {
  const auto said_when = [](const std::function<void(Peer & peer)>& act) {
    const FreePort port;
    return in_processes(2, [&](int rank) {
      if (rank == 0) {
        const auto bootstrap = meet(secret_place(port), launched(0, 2), "plan",
                                    {kPatienceSeconds, kPatienceSeconds, 0, 1, kPatienceSeconds});
        run_rank(*bootstrap, [&] { bootstrap->exchange({0, 0, 2}, {}, {}); });
        return;
      }
      Peer peer(port);
      act(peer);
      peer.heard_until_the_end(3);
    })[0];
  };
  EXPECT_THAT(said_when([](Peer& peer) {
                peer.hello(1, 2, kTrue);
                peer.say(MessageKind::kExchange, "x", {77, 0, std::numeric_limits<int>::max()});
              }),
              "rank 1 of 2: it does not do the same as the other ranks");
  EXPECT_THAT(said_when([](Peer& peer) {
                peer.hello(1, 3, kTrue);
                peer.hello(1, 3, kTrue);
              }),
              "rank 1 of 2: it was started as one of 3 ranks, rank 0 as one of 2");
  const std::string killed = said_when([](Peer& peer) {
    peer.hello(1, 2, kTrue);
    peer.say(MessageKind::kFailure, "0\n0\nall is well");  // no code of a failure: nobody listens
    peer.say(MessageKind::kFailure, "0\n1\n" + kEscapes + std::string(9000, 'A'));
  });
  EXPECT_THAT(killed, HasSubstr("rank 1 of 2: ?]0;owned? all is well"));  // not: of rank 0
  EXPECT_LT(killed.size(), 5000U);
  EXPECT_THAT(killed, Not(HasSubstr("\x1b")));
  EXPECT_EQ(said_when([](Peer& peer) {
              peer.hello(1, 2, kTrue);
              peer.say(MessageKind::kHello, "again");
            }),
            "rank 1 of 2: it does not do the same as the other ranks");
}

TEST(BootstrapAttack, ARankThatTakesNothingIsLost) {
  const FreePort port;
  const auto said = in_processes(2, [&](int rank) {
    if (rank == 1) {  // enters, sends much, reads none of the answers
      Peer peer(port);
      peer.hello(1, 2, kTrue);
      while (const auto message = peer.hear()) {
        if (message->kind == MessageKind::kWelcome) break;
      }
      Message much;
      much.kind = MessageKind::kExchange;
      much.group = {0, 1, 2};
      much.payload.resize(std::size_t{16} << 20);
      send_message(peer.socket(), much);
      sleep(3);
      return;
    }
    const auto bootstrap = meet(secret_place(port), launched(0, 2), "plan",
                                {kPatienceSeconds, kPatienceSeconds, 5, 1, kPatienceSeconds});
    run_rank(*bootstrap, [&] {
      std::vector<std::byte> mine(std::size_t{16} << 20);
      std::vector<std::byte> all(2 * mine.size());
      bootstrap->exchange({0, 0, 2}, mine, all);
      bootstrap->exchange({0, 0, 2}, mine, all);
    });
  });
  EXPECT_EQ(said[0], "rank 1 of 2: its process ended without a word");
}

TEST(BootstrapAttack, AStrangerWhoAnswersAsRank0IsNotBelieved) {
  const Listener stranger = listen_on("127.0.0.1", 0);
  const Marks marks;
  const auto said = in_processes(2, [&](int rank) {
    if (rank == 1) {
      try {
        meet(secret_place(stranger.port), launched(1, 2), "plan", {1, 20, 0, 1, 0.3});
      } catch (const Error&) {
        marks.set("gone");
        throw;
      }
      return;
    }
    while (!marks.has("gone")) {
      if (!stranger.sockets.front().await_input(deadline_in(0.1))) continue;
      const Socket victim = accept_from(stranger.sockets.front());
      Message message;
      message.kind = MessageKind::kChallenge;
      message.payload.resize(32);
      send_message(victim, message);
      message.kind = MessageKind::kAccepted;
      send_message(victim, message);
      message.kind = MessageKind::kWelcome;
      send_message(victim, message);
      usleep(100'000);
    }
  });
  EXPECT_THAT(said[1], HasSubstr("is not rank 0 of this run, or has another key"));
}

}  // namespace
}  // namespace shardwright::exec
