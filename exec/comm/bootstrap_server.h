// SPDX-License-Identifier: Apache-2.0
// The place where processes meet: a thread of rank 0 that collects what ranks send and answers all
// of them together, and that notices when one of them is gone.
//
// Every rank keeps one connection open, rank 0 too. A connection that ends without a farewell is a
// process that died: all hear of it at once.
//
// Whoever connects is a stranger until its hello has shown that it knows the key
// (exec/comm/bootstrap_key.h). A stranger gets a few seconds and may say nothing but that; there is
// room for a number of them, and the oldest makes room for the next. When all ranks are there,
// nobody listens any more. What a rank says is held against what it may say: its own failures,
// places that exist, messages of a bounded size.
#pragma once

#include <atomic>
#include <map>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "exec/comm/bootstrap_key.h"
#include "exec/comm/bootstrap_message.h"
#include "exec/comm/socket.h"

namespace shardwright::exec {

struct BootstrapTimes {
  double join_s = 300;       // until all ranks have come
  double exchange_s = 1800;  // from the first to the last rank of an exchange
  double answer_s = 5;       // beyond join_s: the server knows best who lacks, so it speaks first
  double send_s = 20;        // a peer that takes nothing for so long is lost
  double stranger_s = 10;    // for a hello
};

class BootstrapServer {
 public:
  /// `own` is rank 0's connection, which needs no hello. `self` is what all must agree with.
  BootstrapServer(Listener listener, Socket own, const Introduction& self, const BootstrapKey& key,
                  const BootstrapTimes& times);
  /// Waits until all ranks have taken their leave or are gone.
  ~BootstrapServer();
  BootstrapServer(const BootstrapServer&) = delete;
  BootstrapServer& operator=(const BootstrapServer&) = delete;

 private:
  struct Peer {
    Socket socket;
    MessageReader reader;
    Nonce challenge{};
    Deadline hello_by;
    int rank = -1;  // a stranger
    bool left = false;
  };
  struct Gathering {
    std::vector<std::vector<std::byte>> parts;
    std::vector<int> ranks;  // by place; -1: not there yet
    int arrived = 0;
    Deadline deadline;
  };

  void serve() noexcept;
  bool done() const;
  void wait_for_input();
  void accept_one(const Socket& listening);
  /// False when there is none.
  bool drop_oldest_stranger();
  void drop_late_strangers();
  void take(Peer& peer);
  void take_from_rank(Peer& peer, Message message);
  void greet(Peer& peer, const Message& message);
  void introduce(Peer& peer, const Introduction& peer_says);
  void welcome();
  void gather(const Peer& peer, Message message);
  void check_deadlines();
  void lose(Peer& peer);
  void announce(const RankFailure& failure);
  void send_all(const Message& message);
  std::string missing() const;

  Listener listener_;
  const Introduction self_;
  const BootstrapKey key_;
  const BootstrapTimes times_;
  Deadline accept_again_;  // after the system had no descriptor left
  Deadline join_deadline_;
  std::vector<Peer> peers_;
  std::map<std::tuple<std::uint32_t, std::uint32_t>, Gathering> gatherings_;
  std::optional<RankFailure> failure_;
  Deadline end_;  // after a failure, and after rank 0's farewell
  int joined_ = 0;
  std::thread thread_;
};

}  // namespace shardwright::exec
