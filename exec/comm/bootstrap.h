// SPDX-License-Identifier: Apache-2.0
// Where the ranks of a job meet on the host, as threads of one process or as processes anywhere.
//
// A communicator that moves data on devices (NCCL) needs little from the host: a first id, the few
// numbers that ranks exchange between steps, and the news that one of them has failed. The first
// failure that is told is the one that all hear of; whoever waits for a rank that cannot come any
// more gets Aborted.
//
// Read next: exec/nccl/nccl_communicator.h.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "exec/comm/launch_environment.h"
#include "exec/comm/sha256.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {

// Words of a peer, or of a stranger's file, for a terminal: cut to 4 KiB, and without what a
// terminal would obey.

/// ASCII's control characters and, in UTF-8, those of Latin 1 (U+0080 to U+009F) are replaced: ends
/// of lines and tabs by spaces, others by question marks.
std::string one_line(std::string text);

// A TCP connection, as little of it as rendezvous need. Failures of the network are values here:
// who calls knows what they mean.

using Deadline = std::chrono::steady_clock::time_point;
Deadline deadline_in(double seconds);

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() { close(); }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept;

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  void close() noexcept;
  /// Wakes whoever reads from it.
  void shut_down() noexcept;
  /// How long a peer may take nothing of what is sent to it; without, for ever.
  void set_send_timeout(double seconds) noexcept;
  /// False when the other side is gone or takes nothing; the connection is then of no use and
  /// ended.
  bool send_all(std::span<const std::byte> bytes) const noexcept;
  /// Waits until there is something to read or the connection has ended; false at the deadline.
  bool await_input(Deadline deadline) const;

 private:
  int fd_ = -1;
};

/// Two ends of a connection within this process.
std::pair<Socket, Socket> socket_pair();

struct Listener {
  std::vector<Socket> sockets;  // one an address
  int port = 0;
};
/// Listens on the addresses of `host` that are this machine's; "" stands for all of the machine.
/// Port 0 takes a free one. Throws std::system_error.
Listener listen_on(const std::string& host, int port);
/// A connection, or one that is not open and errno.
Socket accept_from(const Socket& listening);

/// A connection, or one that is not open and in `why` the system's reason.
Socket connect_to(const std::string& host, int port, Deadline deadline, std::string& why);

struct RankFailure {
  int rank = 0;
  ExitCode code = ExitCode::kFailed;
  std::string what;  // a sentence without the rank
};

/// Ranks that exchange with each other: `place` of `places`, the same `channel` on all of them and
/// on no other group.
struct BootstrapGroup {
  std::uint32_t channel = 0;
  int place = 0;
  int places = 1;
};

class Bootstrap {
 public:
  virtual ~Bootstrap() = default;
  virtual int rank() const = 0;
  virtual int ranks() const = 0;

  /// all[i] = what place i sent. All places call it in the same order with equal sizes;
  /// all = places * mine. Throws Aborted when a rank has failed.
  virtual void exchange(const BootstrapGroup& group, std::span<const std::byte> mine,
                        std::span<std::byte> all) = 0;
  /// Tells all ranks that this one cannot go on.
  virtual void fail(ExitCode code, const std::string& what) noexcept = 0;
  /// The first failure that was told, when there is one.
  virtual std::optional<RankFailure> failure() const = 0;
};

/// Runs body() as this rank. What it throws is told to the others and thrown again as the error of
/// the rank that failed first, "rank 2 of 4: ..."; a single rank's own exception passes as it is.
void run_rank(Bootstrap& bootstrap, const std::function<void()>& body);

// What the ranks of one run know and strangers do not, and how they prove it without saying it.
//
//   server -> rank   challenge: a number that nobody saw before
//   rank -> server   hello: a number of its own, who it is, and a code over all of that
//   server -> rank   accepted: a code over the same two numbers, so that the rank knows rank 0
//
// The key is made of what all ranks were given (SHARDWRIGHT_MEETING_KEY), of what rank 0 wrote into
// the rendezvous file, and of what the launcher says about the run. Where there is only the last,
// the key is as secret as the number of a job. What follows the hello is neither encrypted nor
// authenticated message by message: the network must keep others from writing into connections.

using BootstrapKey = Digest;
using Nonce = Digest;

/// `given` to all ranks, `published` by rank 0's file, `run`: the launcher's words for this run.
BootstrapKey bootstrap_key(const std::string& given, const std::string& published,
                           const std::string& run);
/// Throws std::system_error where the system has no random numbers.
Nonce fresh_nonce();

/// A rank's hello: its nonce, its proof and `text`.
std::vector<std::byte> make_hello(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                                  const Nonce& rank_nonce, const std::string& text);
struct Hello {
  Nonce nonce{};  // the rank's
  std::string text;
};
/// None when whoever sent it does not know the key or answers another challenge.
std::optional<Hello> check_hello(const BootstrapKey& key, const Nonce& server_nonce,
                                 std::span<const std::byte> hello);
/// The server's answer to a hello.
Digest acceptance(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                  const Nonce& rank_nonce);

// What ranks and the rendezvous's server say to each other: a header of fixed size and its payload.

enum class MessageKind : std::uint32_t {
  kChallenge = 1,  // the server's first word: a nonce
  kHello,          // a rank introduces itself: nonce, proof, Introduction
  kAccepted,       // the server's proof that it knows the key, too
  kWelcome,        // all ranks are there
  kExchange,       // what a place of a group gives
  kReply,          // what all places gave
  kFailure,        // to the server: this rank failed; from it: the first one that did
  kBye             // the rank needs nobody any more
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

struct BootstrapTimes {
  double join_s = 300;       // until all ranks have come
  double exchange_s = 1800;  // from the first to the last rank of an exchange
  double answer_s = 5;       // beyond join_s: the server knows best who lacks, so it speaks first
  double send_s = 20;        // a peer that takes nothing for so long is lost
  double stranger_s = 10;    // for a hello
};

// A rendezvous of ranks that are threads of one process.

class LocalBootstrapRoom {
 public:
  explicit LocalBootstrapRoom(int ranks) : ranks_(ranks) {}
  LocalBootstrapRoom(const LocalBootstrapRoom&) = delete;
  LocalBootstrapRoom& operator=(const LocalBootstrapRoom&) = delete;

  /// Runs body(rendezvous) on a thread for every rank and waits for all. Throws the error of the
  /// rank that failed first.
  void run(const std::function<void(Bootstrap& bootstrap)>& body);

 private:
  class Seat;
  struct Gathering {
    std::vector<std::vector<std::byte>> parts;
    int arrived = 0;
    int taken = 0;
  };

  int ranks_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, Gathering> gatherings_;  // channel, sequence
  std::optional<RankFailure> failure_;
};

// A rendezvous of processes through the server of rank 0.

struct BootstrapAddress {
  std::string host;
  int port = 0;
  std::string secret;  // that rank 0 wrote beside them; may be empty
};

/// Where rank 0 listens, told to whom it may concern.
struct BootstrapPlace {
  std::string name;  // "tcp://n0:29501", for people
  std::string host;  // whose addresses rank 0 listens on; empty: all of its machine
  int port = 0;      // that rank 0 listens on; 0: a free one
  std::string key;   // that all ranks were given; may be empty
  std::string run;   // tells runs apart that meet at the same place; may be empty
  /// Rank 0 says where it listens, and a secret. Empty: all know.
  std::function<void(const BootstrapAddress& address)> publish;
  /// Where rank 0 listens, or none as long as that is not known, and in `why` the reason.
  std::function<std::optional<BootstrapAddress>(std::string& why)> find;
  /// How a port that is taken can be changed.
  std::string port_advice;
};

/// Returns when all ranks are there. Throws Error: the port is in use, nobody answers, ranks lack
/// at the deadline, or ranks do not agree about the job.
std::unique_ptr<Bootstrap> join_bootstrap(const BootstrapPlace& place, const Introduction& self,
                                          const BootstrapTimes& times);

// Files between the processes of one user, in places where other users write, too.
//
// Whoever can write into the temporary folder can put a link, a pipe or a file of his own where the
// ranks of somebody else are going to look. So the folder is one that only its owner may enter, new
// files are made (never opened) with a mode that nobody else can read, and what is read must be a
// regular file of this user.

/// XDG_RUNTIME_DIR where it is this user's alone, else shardwright-UID in the temporary folder,
/// which is made. Throws Error when that is somebody else's or open to others.
std::filesystem::path private_folder(const Environment& environment);

/// A new file of mode 0600 that takes the name in one step; what had it is replaced, never written
/// through. Throws Error.
void write_private_file(const std::filesystem::path& path, const std::string& text);

/// The text of a regular file that belongs to this user and that nobody else can read; else none,
/// and in `why` the reason. Never waits.
std::optional<std::string> read_private_file(const std::filesystem::path& path,
                                             std::size_t most_bytes, std::string& why);

// How the processes of a run find each other: what the launcher tells, or what the user says.
//
//   torchrun        MASTER_ADDR and MASTER_PORT (the next port where torchrun uses that one itself)
//   srun            the first host of the step, and a port made from the job's number
//   mpirun          on one machine a file in a folder of the user, named after the launcher
//   --rendezvous    tcp://HOST:PORT or file:///PATH; with a file on a shared file system rank 0
//                   takes a free port and writes there where it listens, and a secret
//
// Ranks prove to each other that they know a key: the secret of that file, which only its owner can
// read, and SHARDWRIGHT_MEETING_KEY where that is set for all ranks. Where there is neither, the
// launcher's name for the run has to do, which others may guess: is_secret() tells.
//
// A file that an earlier run left behind does no harm: nobody answers where it points to, or
// somebody who belongs to another run, and ranks look again.

struct Rendezvous {
  std::string file;  // empty: host and port
  std::string host;
  int port = 0;
  std::string run;              // tells runs apart; may be empty
  std::string key;              // SHARDWRIGHT_MEETING_KEY; may be empty
  bool on_one_machine = false;  // all ranks

  /// Whether ranks prove who they are with something that strangers cannot guess.
  bool is_secret() const { return !key.empty() || !file.empty(); }

  /// "tcp://n0:29501" or "file:///shared/meet".
  std::string name() const;
  BootstrapPlace place() const;
};

/// `wish` is "auto" or what --rendezvous accepts. Throws Error that says what the launcher does not
/// tell, or that a key is too short.
Rendezvous choose_rendezvous(const std::string& wish, const LaunchEnvironment& launch,
                             const Environment& environment);

/// The first host of a list of Slurm's: "n[007-009,12],m1" is n007.
std::string first_slurm_host(const std::string& list);

/// All ranks with the same fingerprint at the same place.
std::unique_ptr<Bootstrap> meet(const Rendezvous& rendezvous, const LaunchEnvironment& launch,
                                const std::string& fingerprint, const BootstrapTimes& times = {});

}  // namespace shardwright::exec
