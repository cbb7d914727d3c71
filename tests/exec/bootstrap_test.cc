// SPDX-License-Identifier: Apache-2.0
// Guards exec/comm/bootstrap.h: processes find each other by TCP or a file, agree
// about the job, exchange, and all hear of the first failure; nothing waits for ever.
#include "exec/comm/bootstrap.h"

#include <fmt/core.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <map>
#include <thread>

#include "exec/communicator.h"
#include "tests/exec/bootstrap_support.h"
#include "tests/support/temp_folder.h"

namespace shardwright::exec {
namespace {

using shardwright::testing::at_port;
using shardwright::testing::FreePort;
using shardwright::testing::in_processes;
using shardwright::testing::kPatient;
using shardwright::testing::launched;
using shardwright::testing::Marks;
using shardwright::testing::Sayings;
using shardwright::testing::TempFolder;
using ::testing::HasSubstr;

/// Every rank sees every rank's number, in the world and in pairs (0, 1), (2, 3).
void exchange_all(Bootstrap& bootstrap) {
  for (int round = 0; round < 5; ++round) {
    const int mine = 100 * round + bootstrap.rank();
    std::vector<int> all(static_cast<std::size_t>(bootstrap.ranks()));
    bootstrap.exchange({0, bootstrap.rank(), bootstrap.ranks()}, std::as_bytes(std::span(&mine, 1)),
                       std::as_writable_bytes(std::span(all)));
    for (int r = 0; r < bootstrap.ranks(); ++r) {
      if (all[static_cast<std::size_t>(r)] != 100 * round + r) throw Error("wrong number");
    }
    std::vector<int> pair(2);
    const auto channel = static_cast<std::uint32_t>(1 + bootstrap.rank() / 2);
    bootstrap.exchange({channel, bootstrap.rank() % 2, 2}, std::as_bytes(std::span(&mine, 1)),
                       std::as_writable_bytes(std::span(pair)));
    if (pair[static_cast<std::size_t>(1 - bootstrap.rank() % 2)] != (mine ^ 1)) {
      throw Error("wrong neighbour");
    }
  }
  bootstrap.exchange({0, bootstrap.rank(), bootstrap.ranks()}, {}, {});
}

TEST(Bootstrap, ThreadsExchange) {
  LocalBootstrapRoom(4).run(exchange_all);
}

TEST(Bootstrap, ProcessesExchangeByTcpAndByFile) {
  const FreePort port;
  const TempFolder folder;
  for (const bool by_file : {false, true}) {
    Rendezvous rendezvous = at_port(port);
    if (by_file) rendezvous.file = (folder.path() / "meet").string();
    EXPECT_THAT(in_processes(4,
                             [&](int rank) {
                               // Rank 0 is the last to come.
                               if (rank == 0) usleep(100'000);
                               const auto bootstrap =
                                   meet(rendezvous, launched(rank, 4), "plan", kPatient);
                               exchange_all(*bootstrap);
                             }),
                ::testing::Each("done"))
        << by_file;
  }
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "meet"));
}

TEST(Bootstrap, LargeMessagesPass) {
  const FreePort port;
  const auto said = in_processes(3, [&](int rank) {
    const auto bootstrap = meet(at_port(port), launched(rank, 3), "plan", kPatient);
    std::vector<int> mine(1'000'000, rank);
    std::vector<int> all(3 * mine.size());
    bootstrap->exchange({0, rank, 3}, std::as_bytes(std::span(mine)),
                        std::as_writable_bytes(std::span(all)));
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (all[i] != static_cast<int>(i / mine.size())) throw Error("wrong");
    }
  });
  EXPECT_THAT(said, ::testing::Each("done"));
}

TEST(Bootstrap, AFileOfAnEarlierRunDoesNoHarm) {
  const TempFolder folder;
  Rendezvous rendezvous;
  rendezvous.file = (folder.path() / "meet").string();
  rendezvous.run = "second";
  const FreePort earlier;  // nobody listens there any more
  write_private_file(rendezvous.file, fmt::format("localhost {} secret\n", int{earlier}));
  const auto said = in_processes(2, [&](int rank) {
    if (rank == 0) usleep(200'000);
    meet(rendezvous, launched(rank, 2), "plan", kPatient);
  });
  EXPECT_THAT(said, ::testing::Each("done"));
}

TEST(Bootstrap, RanksOfAnotherRunAreSentAway) {
  const FreePort port;
  const Marks marks;
  const auto said = in_processes(3, [&](int rank) {
    Rendezvous rendezvous = at_port(port);
    rendezvous.run = rank == 2 ? "old" : "new";
    if (rank == 1) marks.await("away");
    if (rank != 2) {
      meet(rendezvous, launched(rank, 2), "plan", kPatient);
      return;
    }
    std::string why;
    while (!connect_to("127.0.0.1", port, deadline_in(20), why).is_open()) usleep(1000);
    try {
      meet(rendezvous, launched(1, 2), "plan", {2, 200, 0});
    } catch (const Error&) {
      marks.set("away");
      throw;
    }
  });
  EXPECT_EQ(said[0], "done");
  EXPECT_EQ(said[1], "done");
  EXPECT_THAT(said[2], HasSubstr("rank 1 of 2 did not find rank 0 at tcp://127.0.0.1"));
  EXPECT_THAT(said[2], HasSubstr("is not rank 0 of this run, or has another key"));
}

TEST(Bootstrap, RanksThatDisagreeAboutTheJobAreRefused) {
  const FreePort port;
  EXPECT_THAT(
      in_processes(
          2, [&](int rank) { meet(at_port(port), launched(rank, 2 + rank), "plan", kPatient); }),
      ::testing::Each(HasSubstr("it was started as one of 3 ranks, rank 0 as one of 2")));
  EXPECT_THAT(in_processes(3,
                           [&](int rank) {
                             meet(at_port(port), launched(std::min(rank, 1), 4), "plan", kPatient);
                           }),
              ::testing::Each(HasSubstr("rank 1 of 4: two processes were started as this rank")));
  EXPECT_THAT(in_processes(2,
                           [&](int rank) {
                             meet(at_port(port), launched(rank, 2), rank == 0 ? "ddp" : "yafsdp",
                                  kPatient);
                           }),
              ::testing::Each("rank 1 of 2: it runs 'yafsdp', rank 0 runs 'ddp': expected the same "
                              "on all ranks"));
}

/// Expects that all processes say `sentence` of a limit of time. On a machine so busy that the
/// limit passes before they have got as far, they are given four times as much.
void expect_limit(const std::function<Sayings(double limit_s)>& act,
                  fmt::format_string<double&> sentence) {
  for (double limit_s = 1; limit_s < 100; limit_s *= 4) {
    const auto all = ::testing::Each(HasSubstr(fmt::format(sentence, limit_s)));
    const Sayings said = act(limit_s);
    if (::testing::Value(said, all)) return;
    if (limit_s > 25) {
      EXPECT_THAT(said, all);
    }
  }
}

TEST(Bootstrap, NobodyWaitsForEver) {
  const FreePort port;
  expect_limit(
      [&](double limit_s) {
        return in_processes(3, [&](int rank) {
          meet(at_port(port), launched(rank, 5), "plan", {limit_s, 20, 200});
        });
      },
      "rank 0 of 5: ranks 3, 4 have not come within {} s; expected 5 ranks");
  const auto lost = in_processes(1, [&](int) {
    meet(at_port(port), launched(1, 2), "plan", {0.1, 20, 0});
  });
  EXPECT_THAT(lost[0], HasSubstr("Connection refused"));
  expect_limit(
      [&](double limit_s) {
        return in_processes(3, [&](int rank) {
          const auto bootstrap =
              meet(at_port(port), launched(rank, 3), "plan", {200, limit_s, 200});
          run_rank(*bootstrap, [&] {
            if (rank < 2) bootstrap->exchange({0, rank, 3}, {}, {});
            while (!bootstrap->failure()) usleep(1000);
            throw Aborted();
          });
        });
      },
      "ranks 0, 1 have waited {} s for the other");
}

/// Rank 0 of a large job, or on a busy machine, takes its time: it may have counted a rank whose
/// hello it has not answered yet, and then the rank must not hang up.
TEST(Bootstrap, ARankThatHasSaidHelloWaitsForTheAnswer) {
  const Listener rank_0 = listen_on("127.0.0.1", 0);
  const Marks marks;
  const auto said = in_processes(2, [&](int rank) {
    if (rank == 1) {
      meet(at_port(rank_0.port), launched(1, 2), "plan", {200, 200, 5, 200, 0.1});
      marks.set("met");
      return;
    }
    int hung_up = 0;
    while (!marks.has("met")) {
      if (!rank_0.sockets.front().await_input(deadline_in(0.1))) continue;
      const Socket socket = accept_from(rank_0.sockets.front());
      MessageReader reader;
      const Nonce nonce = fresh_nonce();
      Message message;
      message.kind = MessageKind::kChallenge;
      message.payload.assign(nonce.begin(), nonce.end());
      send_message(socket, message);
      std::optional<Message> answer;
      while (!answer && reader.read_from(socket)) answer = reader.next();
      if (!answer) continue;  // it was not challenged in time
      const BootstrapKey key = bootstrap_key("", "", "");
      const auto hello = check_hello(key, nonce, answer->payload);
      if (!hello) throw Error("that is no hello");
      if (hung_up == 0) usleep(500'000);
      message.kind = MessageKind::kAccepted;
      const Digest proof = acceptance(key, nonce, hello->nonce);
      message.payload.assign(proof.begin(), proof.end());
      send_message(socket, message);
      message.kind = MessageKind::kWelcome;
      message.payload.clear();
      send_message(socket, message);
      reader.read_from(socket);  // its leave; nothing, if it has hung up
      hung_up += reader.next() ? 0 : 1;
    }
    if (hung_up > 0) throw Error("it does not wait");
  });
  EXPECT_THAT(said, ::testing::Each("done"));
}

TEST(Bootstrap, APortInUseIsNamed) {
  const Listener other = listen_on("", 0);
  try {
    meet(at_port(other.port), launched(0, 2), "plan", kPatient);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_EQ(
        error.what(),
        fmt::format("rank 0 cannot listen on port {}: Address already in use; expected a free "
                    "one: choose it with MASTER_PORT or --rendezvous",
                    other.port));
  }
}

TEST(Bootstrap, AnAddressOfAnotherMachineIsNamed) {
  Rendezvous elsewhere = at_port(29501);
  elsewhere.host = "192.0.2.1";  // of the network that is kept for documents
  try {
    meet(elsewhere, launched(0, 2), "plan", kPatient);
    ADD_FAILURE() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(),
                 "rank 0 cannot listen at tcp://192.0.2.1:29501: 192.0.2.1 is no address of this "
                 "machine, expected one");
  }
}

TEST(Bootstrap, ListensAtTheAddressThatIsGivenOnly) {
  const Listener one = listen_on("127.0.0.1", 0);
  std::string why;
  EXPECT_TRUE(connect_to("127.0.0.1", one.port, deadline_in(5), why).is_open());
  EXPECT_FALSE(connect_to("127.0.0.2", one.port, deadline_in(5), why).is_open());
  const Listener all = listen_on("", 0);
  EXPECT_TRUE(connect_to("127.0.0.2", all.port, deadline_in(5), why).is_open());
}

TEST(Bootstrap, ANameThatMeansOnlyThisMachineIsNoneForOthers) {
  Rendezvous rendezvous = at_port(29501);
  EXPECT_EQ(rendezvous.place().host, "127.0.0.1");
  rendezvous.host = "localhost";
  EXPECT_EQ(rendezvous.place().host, "");
  rendezvous.on_one_machine = true;
  EXPECT_EQ(rendezvous.place().host, "localhost");
}

TEST(Bootstrap, ARankThatDiesOrFailsEndsAll) {
  for (const int victim : {0, 2}) {
    const FreePort port;
    const auto end_with = [&](const std::function<void()>& end) {
      return in_processes(4, [&](int rank) {
        const auto bootstrap = meet(at_port(port), launched(rank, 4), "plan", kPatient);
        run_rank(*bootstrap, [&] {
          bootstrap->exchange({0, rank, 4}, {}, {});
          if (rank == victim) end();
          bootstrap->exchange({0, rank, 4}, {}, {});
        });
      });
    };
    Sayings died = end_with([] { std::raise(SIGKILL); });
    EXPECT_EQ(died[static_cast<std::size_t>(victim)], "ended by signal 9");
    died.erase(died.begin() + victim);
    EXPECT_THAT(died, ::testing::Each(
                          fmt::format("rank {} of 4: its process ended without a word", victim)));
    EXPECT_THAT(end_with([] { throw Error("the disk is full", ExitCode::kFailed); }),
                ::testing::Each(fmt::format("rank {} of 4: the disk is full", victim)));
  }
}

TEST(MessageReader, TakesAnythingInAnyPieces) {
  Message message;
  message.kind = MessageKind::kExchange;
  message.group = {3, 1, 2};
  message.sequence = 7;
  message.set_text("the payload");
  auto [near, far] = socket_pair();
  ASSERT_TRUE(send_message(near, message));
  std::vector<std::byte> wire(200);
  const auto size = static_cast<std::size_t>(recv(far.fd(), wire.data(), wire.size(), 0));
  wire.resize(size);
  std::uint32_t random = 1;
  for (int round = 0; round < 500; ++round) {
    std::vector<std::byte> damaged = wire;
    damaged.insert(damaged.end(), wire.begin(), wire.end());
    const bool damages = round % 2 == 1;
    random = random * 1664525 + 1013904223;
    if (damages) damaged[random % damaged.size()] ^= static_cast<std::byte>(1 + random % 255);
    auto [out, in] = socket_pair();
    MessageReader reader;
    int whole = 0;
    bool alive = true;
    for (std::size_t at = 0; at < damaged.size() && alive;) {
      const std::size_t piece = std::min<std::size_t>(1 + (random >> 8) % 60, damaged.size() - at);
      ASSERT_TRUE(out.send_all(std::span(damaged).subspan(at, piece)));
      alive = reader.read_from(in);
      while (const auto next = reader.next()) whole += next->text() == "the payload" ? 1 : 0;
      at += piece;
    }
    if (!damages) {
      EXPECT_EQ(whole, 2);
    }
  }
}

Environment of(const std::map<std::string, std::string>& variables) {
  return [variables](const std::string& name) -> std::optional<std::string> {
    const auto at = variables.find(name);
    return at == variables.end() ? std::nullopt : std::optional(at->second);
  };
}

TEST(Rendezvous, FollowsTheLauncher) {
  LaunchEnvironment torchrun = launched(1, 2);
  torchrun.address = "n0";
  torchrun.port = 29501;
  const Rendezvous tcp = choose_rendezvous("auto", torchrun, of({{"TORCHELASTIC_RUN_ID", "x"}}));
  EXPECT_EQ(tcp.name(), "tcp://n0:29501");
  EXPECT_EQ(tcp.run, "x");
  EXPECT_EQ(choose_rendezvous("file:///a/b", torchrun, of({})).name(), "file:///a/b");
  EXPECT_EQ(choose_rendezvous("tcp://[::1]:80", torchrun, of({})).name(), "tcp://[::1]:80");

  LaunchEnvironment slurm;
  slurm.launcher = Launcher::kSlurm;
  slurm.ranks = 4;
  slurm.local_ranks = 0;
  const Rendezvous step = choose_rendezvous(
      "auto", slurm, of({{"SLURM_STEP_NODELIST", "n[007-009]"}, {"SLURM_JOB_ID", "1001"}}));
  EXPECT_EQ(step.name(), "tcp://n007:24016");
  EXPECT_EQ(step.run, "1001");

  LaunchEnvironment mpi;
  mpi.launcher = Launcher::kOpenMpi;
  mpi.ranks = mpi.local_ranks = 4;
  EXPECT_THAT(choose_rendezvous("auto", mpi, of({})).name(),
              HasSubstr(fmt::format("shardwright-{}/shardwright-meeting-{}", getuid(), getppid())));
  mpi.local_ranks = 2;
  EXPECT_THROW(choose_rendezvous("auto", mpi, of({})), Error);
}

TEST(Rendezvous, TellsWhetherStrangersCanGuessTheKey) {
  const std::string key = "0123456789abcdef";
  EXPECT_FALSE(choose_rendezvous("tcp://n0:80", launched(0, 2), of({})).is_secret());
  EXPECT_TRUE(choose_rendezvous("file:///a/b", launched(0, 2), of({})).is_secret());
  EXPECT_TRUE(
      choose_rendezvous("tcp://n0:80", launched(0, 2), of({{"SHARDWRIGHT_MEETING_KEY", key}}))
          .is_secret());
  EXPECT_THROW(
      choose_rendezvous("tcp://n0:80", launched(0, 2), of({{"SHARDWRIGHT_MEETING_KEY", "short"}})),
      Error);
}

TEST(Rendezvous, SurvivesNumbersOfAnySize) {
  LaunchEnvironment slurm;
  slurm.launcher = Launcher::kSlurm;
  slurm.ranks = 4;
  slurm.local_ranks = 0;
  const Rendezvous far = choose_rendezvous("auto", slurm,
                                           of({{"SLURM_STEP_NODELIST", "n1"},
                                               {"SLURM_JOB_ID", "9223372036854775807"},
                                               {"SLURM_STEP_ID", "9223372036854775807"}}));
  EXPECT_GE(far.port, 20000);
  EXPECT_LT(far.port, 32000);
}

TEST(Rendezvous, RefusesWhatIsNoAddress) {
  for (const char* wish : {"", "n0:80", "tcp://n0", "tcp://:80", "tcp://n0:0", "tcp://n0:70000",
                           "tcp://n0:x", "file://", "file://relative", "tcp:"}) {
    EXPECT_THROW(choose_rendezvous(wish, launched(0, 2), of({})), Error) << wish;
  }
}

TEST(Rendezvous, FindsTheFirstHostOfSlurmsLists) {
  EXPECT_EQ(first_slurm_host("n1"), "n1");
  EXPECT_EQ(first_slurm_host("n1,n2"), "n1");
  EXPECT_EQ(first_slurm_host("n[007-009,12],m1"), "n007");
  EXPECT_EQ(first_slurm_host("rack[3]-node,m[1-2]"), "rack3-node");
  EXPECT_EQ(first_slurm_host("a,n[1-2]"), "a");
  EXPECT_EQ(first_slurm_host("n[1"), "");
}

}  // namespace
}  // namespace shardwright::exec
