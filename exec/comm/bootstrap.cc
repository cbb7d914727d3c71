// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/bootstrap.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/core.h>
#include <fmt/ranges.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <sstream>
#include <system_error>
#include <thread>
#include <tuple>
#include <utility>

#include "exec/communicator.h"
#include "sim/core/base/check.h"
#include "sim/core/base/error.h"
#include "sim/core/base/parse_number.h"

namespace shardwright::exec {

constexpr std::size_t kMostSentenceBytes = 4096;

std::string one_line(std::string text) {
  text.resize(std::min(text.size(), kMostSentenceBytes));
  unsigned char before = 0;
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool latin_control = before == 0xc2 && byte >= 0x80 && byte < 0xa0;
    const bool control = byte < 0x20 || byte == 0x7f || latin_control;
    if (control) c = byte == '\n' || byte == '\t' ? ' ' : '?';
    before = byte;
  }
  return text;
}

namespace {

constexpr int kWaitingConnections = 1024;

int milliseconds_until(Deadline deadline) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      deadline - std::chrono::steady_clock::now());
  return static_cast<int>(std::clamp<std::int64_t>(left.count(), 0, 1'000'000'000));
}

[[noreturn]] void fail(const char* call) {
  throw std::system_error(errno, std::generic_category(), call);
}

void set_option(int fd, int level, int option, int value) {
  setsockopt(fd, level, option, &value, sizeof value);
}

/// Small messages leave at once; a machine that is lost shows within about a minute.
void prepare(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 30);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 10);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

/// Connects one address; 0 or the system's error.
int connect_address(const addrinfo& address, Deadline deadline, Socket& out) {
  Socket socket(::socket(address.ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return errno;
  if (connect(socket.fd(), address.ai_addr, address.ai_addrlen) != 0) {
    if (errno != EINPROGRESS) return errno;
    pollfd waiting{socket.fd(), POLLOUT, 0};
    if (poll(&waiting, 1, milliseconds_until(deadline)) <= 0) return ETIMEDOUT;
    int status = 0;
    socklen_t size = sizeof status;
    getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &status, &size);
    if (status != 0) return status;
  }
  fcntl(socket.fd(), F_SETFL, fcntl(socket.fd(), F_GETFL) & ~O_NONBLOCK);
  prepare(socket.fd());
  out = std::move(socket);
  return 0;
}

}  // namespace

Deadline deadline_in(double seconds) {
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(
             std::chrono::duration<double>(seconds));
}

Socket& Socket::operator=(Socket&& other) noexcept {
  if (this != &other) {
    close();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Socket::close() noexcept {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void Socket::shut_down() noexcept {
  if (fd_ >= 0) shutdown(fd_, SHUT_RDWR);
}

void Socket::set_send_timeout(double seconds) noexcept {
  timeval time{};
  time.tv_sec = static_cast<time_t>(seconds);
  time.tv_usec = static_cast<suseconds_t>((seconds - static_cast<double>(time.tv_sec)) * 1e6);
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof time);
}

bool Socket::send_all(std::span<const std::byte> bytes) const noexcept {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) {
      shutdown(fd_, SHUT_RDWR);  // half a message may be on its way
      return false;
    }
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

bool Socket::await_input(Deadline deadline) const {
  pollfd waiting{fd_, POLLIN, 0};
  int ready = 0;
  do {
    ready = poll(&waiting, 1, milliseconds_until(deadline));
  } while (ready < 0 && errno == EINTR);
  return ready > 0;
}

std::pair<Socket, Socket> socket_pair() {
  std::array<int, 2> ends{};
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends.data()) != 0) fail("socketpair");
  return {Socket(ends[0]), Socket(ends[1])};
}

namespace {

struct FreeAddresses {
  void operator()(addrinfo* list) const { freeaddrinfo(list); }
};
using Addresses = std::unique_ptr<addrinfo, FreeAddresses>;

/// Null where the name is not known, and in `why` the reason.
Addresses look_up(const std::string& host, int port, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    why = gai_strerror(status);
    return nullptr;
  }
  return Addresses(found);
}

void set_port(sockaddr_storage& address, int port) {
  const std::uint16_t number = htons(static_cast<std::uint16_t>(port));
  if (address.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address).sin6_port = number;
  } else {
    reinterpret_cast<sockaddr_in&>(address).sin_port = number;
  }
}

int port_of(const Socket& socket) {
  sockaddr_storage bound{};
  socklen_t size = sizeof bound;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    fail("getsockname");
  }
  return ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                           : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
}

/// Not open, and errno, when the address cannot be bound.
Socket listening_socket(const sockaddr_storage& address, bool v6_only) {
  Socket socket(::socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket.is_open()) return socket;
  set_option(socket.fd(), SOL_SOCKET, SO_REUSEADDR, 1);
  const bool v6 = address.ss_family == AF_INET6;
  if (v6) set_option(socket.fd(), IPPROTO_IPV6, IPV6_V6ONLY, v6_only ? 1 : 0);
  const socklen_t size = v6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  if (bind(socket.fd(), reinterpret_cast<const sockaddr*>(&address), size) != 0 ||
      listen(socket.fd(), kWaitingConnections) != 0) {
    const int reason = errno;
    socket.close();
    errno = reason;
  }
  return socket;
}

/// IPv6 sockets take IPv4 connections, too, where the machine has IPv6 at all.
Socket listen_everywhere(int port) {
  sockaddr_storage any{};
  any.ss_family = AF_INET6;  // all zero: any address
  set_port(any, port);
  Socket socket = listening_socket(any, false);
  if (socket.is_open() || errno != EAFNOSUPPORT) return socket;
  any = {};
  any.ss_family = AF_INET;
  set_port(any, port);
  return listening_socket(any, false);
}

bool is_loopback(const sockaddr& address) {
  if (address.sa_family == AF_INET6) {
    return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr);
  }
  const auto& four = reinterpret_cast<const sockaddr_in&>(address);
  return (ntohl(four.sin_addr.s_addr) >> 24) == 127;
}

}  // namespace

Listener listen_on(const std::string& host, int port) {
  Listener listener;
  listener.port = port;
  if (host.empty()) {
    listener.sockets.push_back(listen_everywhere(port));
    if (!listener.sockets.back().is_open()) fail("listen");
    listener.port = port_of(listener.sockets.back());
    return listener;
  }
  std::string unknown;
  const Addresses found = look_up(host, port, unknown);
  errno = EADDRNOTAVAIL;
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    sockaddr_storage address{};
    std::memcpy(&address, at->ai_addr, std::min<std::size_t>(at->ai_addrlen, sizeof address));
    set_port(address, listener.port);
    Socket socket = listening_socket(address, true);
    if (!socket.is_open()) {
      // Some addresses of a name may be another machine's; a port that is taken must be told.
      if (errno == EADDRINUSE) fail("bind");
      continue;
    }
    listener.port = port_of(socket);
    listener.sockets.push_back(std::move(socket));
  }
  if (listener.sockets.empty()) fail("bind");
  return listener;
}

Socket accept_from(const Socket& listening) {
  Socket socket(accept4(listening.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.is_open()) prepare(socket.fd());
  return socket;
}

Socket connect_to(const std::string& host, int port, Deadline deadline, std::string& why) {
  const Addresses found = look_up(host, port, why);
  Socket socket;
  for (const addrinfo* at = found.get(); at != nullptr && !socket.is_open(); at = at->ai_next) {
    if (const int status = connect_address(*at, deadline, socket)) why = std::strerror(status);
  }
  return socket;
}

namespace {

/// Whether this machine takes the name for itself alone: "localhost", and often its own name.
bool names_loopback(const std::string& host) {
  std::string unknown;
  const Addresses found = look_up(host, 0, unknown);
  for (const addrinfo* at = found.get(); at != nullptr; at = at->ai_next) {
    if (!is_loopback(*at->ai_addr)) return false;
  }
  return found != nullptr;
}

bool is_numeric_address(const std::string& host) {
  in6_addr ignored{};
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 ||
         inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

[[noreturn]] void throw_failure(const RankFailure& failure, int ranks) {
  throw Error(fmt::format("rank {} of {}: {}", failure.rank, ranks, failure.what), failure.code);
}

}  // namespace

void run_rank(Bootstrap& bootstrap, const std::function<void()>& body) {
  if (bootstrap.ranks() == 1) return body();
  try {
    return body();
  } catch (const Aborted& aborted) {
    bootstrap.fail(ExitCode::kFailed, aborted.what());
  } catch (const Error& error) {
    bootstrap.fail(error.code(), error.what());
  } catch (const std::exception& error) {
    bootstrap.fail(ExitCode::kFailed, error.what());
  }
  throw_failure(*bootstrap.failure(), bootstrap.ranks());
}

namespace {

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

void fill_randomly(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw std::system_error(errno, std::generic_category(), "getrandom");
    bytes = bytes.subspan(static_cast<std::size_t>(count));
  }
}

/// The code over both numbers and a text; `side` keeps the two directions apart.
Digest code(const BootstrapKey& key, const std::string& side,
            std::span<const std::byte> server_nonce, std::span<const std::byte> rank_nonce,
            const std::string& text) {
  std::vector<std::byte> message;
  const auto append = [&message](std::span<const std::byte> part) {
    message.insert(message.end(), part.begin(), part.end());
  };
  append(bytes_of(side));
  append(server_nonce);
  append(rank_nonce);
  append(bytes_of(text));
  return hmac_sha256(key, message);
}

/// 128 random bits as 32 hexadecimal digits.
std::string random_secret() {
  std::array<std::byte, 16> bits{};
  fill_randomly(bits);
  return hex_of(bits);
}

}  // namespace

BootstrapKey bootstrap_key(const std::string& given, const std::string& published,
                           const std::string& run) {
  const std::string parts = fmt::format("{}:{}{}", published.size(), published, run);
  return hmac_sha256(bytes_of(given), bytes_of(parts));
}

Nonce fresh_nonce() {
  Nonce nonce{};
  fill_randomly(nonce);
  return nonce;
}

std::vector<std::byte> make_hello(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                                  const Nonce& rank_nonce, const std::string& text) {
  std::vector<std::byte> hello(rank_nonce.begin(), rank_nonce.end());
  const Digest proof = code(key, "rank", server_nonce, rank_nonce, text);
  hello.insert(hello.end(), proof.begin(), proof.end());
  const auto words = bytes_of(text);
  hello.insert(hello.end(), words.begin(), words.end());
  return hello;
}

std::optional<Hello> check_hello(const BootstrapKey& key, const Nonce& server_nonce,
                                 std::span<const std::byte> hello) {
  constexpr std::size_t kDigest = std::tuple_size_v<Digest>;
  if (hello.size() < 2 * kDigest) return std::nullopt;
  Hello result;
  std::copy_n(hello.begin(), kDigest, result.nonce.begin());
  const auto text = hello.subspan(2 * kDigest);
  result.text.assign(reinterpret_cast<const char*>(text.data()), text.size());
  const Digest expected = code(key, "rank", server_nonce, result.nonce, result.text);
  if (!same_digest(expected, hello.subspan(kDigest, kDigest))) return std::nullopt;
  return result;
}

Digest acceptance(const BootstrapKey& key, std::span<const std::byte> server_nonce,
                  const Nonce& rank_nonce) {
  return code(key, "rank 0", server_nonce, rank_nonce, "");
}

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

std::string failure_text(const RankFailure& failure) {
  return fmt::format("{}\n{}\n{}", failure.rank, static_cast<int>(failure.code), failure.what);
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

// The place where processes meet: a thread of rank 0 that collects what ranks send and answers all
// of them together, and that notices when one of them is gone.
//
// Every rank keeps one connection open, rank 0 too. A connection that ends without a farewell is a
// process that died: all hear of it at once.
//
// Whoever connects is a stranger until its hello has shown that it knows the key
// . A stranger gets a few seconds and may say nothing but that; there is
// room for a number of them, and the oldest makes room for the next. When all ranks are there,
// nobody listens any more. What a rank says is held against what it may say: its own failures,
// places that exist, messages of a bounded size.

class BootstrapServer {
 public:
  /// `own` is rank 0's connection, which needs no hello. `self` is what all must agree with.
  BootstrapServer(Listener listener, Socket own, const Introduction& self, const BootstrapKey& key,
                  const BootstrapTimes& times)
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

  /// Waits until all ranks have taken their leave or are gone.
  ~BootstrapServer() { thread_.join(); }

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

  void serve() noexcept {
    try {
      while (!done()) {
        wait_for_input();
        check_deadlines();
      }
    } catch (const std::exception& error) {
      // The ranks hear it when there is memory enough to tell; when not, the end of their
      // connections says that rank 0 is gone.
      try {
        announce(
            {0, ExitCode::kFailed, fmt::format("it cannot serve the others: {}", error.what())});
      } catch (const std::exception&) {
        for (Peer& peer : peers_) peer.socket.shut_down();
      }
    }
  }

  bool done() const {
    const bool all_gone = std::all_of(peers_.begin(), peers_.end(),
                                      [](const Peer& peer) { return peer.left || peer.rank < 0; });
    const bool rank_0_gone = peers_.front().left;
    if (failure_ || rank_0_gone) return all_gone || std::chrono::steady_clock::now() > end_;
    return joined_ == self_.ranks && all_gone;
  }

  void wait_for_input() {
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

  void accept_one(const Socket& listening) {
    const auto strangers = static_cast<std::size_t>(std::count_if(
        peers_.begin(), peers_.end(), [](const Peer& peer) { return peer.rank < 0; }));
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

  /// False when there is none.
  bool drop_oldest_stranger() {
    const auto oldest = std::find_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return peer.rank < 0 && peer.socket.is_open();
    });
    if (oldest == peers_.end()) return false;
    oldest->socket.close();
    return true;
  }

  void drop_late_strangers() {
    const auto now = std::chrono::steady_clock::now();
    const bool all_are_here = joined_ == self_.ranks;
    for (Peer& peer : peers_) {
      if (peer.rank < 0 && (all_are_here || now > peer.hello_by)) peer.socket.close();
    }
  }

  void take(Peer& peer) {
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

  void take_from_rank(Peer& peer, Message message) {
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

  void greet(Peer& peer, const Message& message) {
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

  void introduce(Peer& peer, const Introduction& peer_says) {
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

  void welcome() {
    listener_.sockets.clear();
    Message message;
    message.kind = MessageKind::kWelcome;
    send_all(message);
  }

  void gather(const Peer& peer, Message message) {
    const BootstrapGroup& group = message.group;
    // A rank waits for its welcome, asks for places that exist and for one answer a group at a
    // time.
    if (joined_ < self_.ranks || group.places < 1 || group.places > self_.ranks ||
        group.place < 0 || group.place >= group.places ||
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

  void check_deadlines() {
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

  void lose(Peer& peer) {
    peer.socket.close();
    const bool was_member = peer.rank >= 0 && !peer.left;
    peer.left = true;
    if (was_member) {
      announce({peer.rank, ExitCode::kFailed, "its process ended without a word"});
    }
  }

  void announce(const RankFailure& failure) {
    if (failure_) return;
    failure_ = failure;
    end_ = deadline_in(kPartingSeconds);
    Message message;
    message.kind = MessageKind::kFailure;
    message.set_text(failure_text(failure));
    send_all(message);
  }

  void send_all(const Message& message) {
    // A peer that takes nothing shows at the next reading: its connection is ended.
    for (const Peer& peer : peers_) {
      if (peer.rank >= 0 && peer.socket.is_open()) send_message(peer.socket, message);
    }
  }

  std::string missing() const {
    std::vector<int> lacking;
    for (int rank = 0; rank < self_.ranks; ++rank) {
      const bool here = std::any_of(peers_.begin(), peers_.end(),
                                    [&](const Peer& peer) { return peer.rank == rank; });
      if (!here) lacking.push_back(rank);
    }
    return ranks_have(lacking);
  }

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

}  // namespace

class LocalBootstrapRoom::Seat final : public Bootstrap {
 public:
  Seat(LocalBootstrapRoom& room, int rank) : room_(room), rank_(rank) {}
  int rank() const override { return rank_; }
  int ranks() const override { return room_.ranks_; }

  void exchange(const BootstrapGroup& group, std::span<const std::byte> mine,
                std::span<std::byte> all) override {
    const auto places = static_cast<std::size_t>(group.places);
    SHARDWRIGHT_CHECK(all.size() == mine.size() * places, "{} bytes from each of {} ranks into {}",
                      mine.size(), places, all.size());
    std::unique_lock lock(room_.mutex_);
    const auto key = std::pair(group.channel, next_[group.channel]++);
    Gathering& gathering = room_.gatherings_[key];
    gathering.parts.resize(places);
    gathering.parts[static_cast<std::size_t>(group.place)].assign(mine.begin(), mine.end());
    ++gathering.arrived;
    room_.changed_.notify_all();
    room_.changed_.wait(lock, [&] { return gathering.arrived == group.places || room_.failure_; });
    if (gathering.arrived < group.places) throw Aborted();
    auto out = all.begin();
    for (const std::vector<std::byte>& part : gathering.parts) {
      SHARDWRIGHT_CHECK(part.size() == mine.size(), "{} and {} bytes in one exchange", part.size(),
                        mine.size());
      out = std::copy(part.begin(), part.end(), out);
    }
    if (++gathering.taken == group.places) room_.gatherings_.erase(key);
  }

  void fail(ExitCode code, const std::string& what) noexcept override {
    const std::lock_guard lock(room_.mutex_);
    if (!room_.failure_) room_.failure_ = RankFailure{rank_, code, what};
    room_.changed_.notify_all();
  }
  std::optional<RankFailure> failure() const override {
    const std::lock_guard lock(room_.mutex_);
    return room_.failure_;
  }

 private:
  LocalBootstrapRoom& room_;
  int rank_;
  std::map<std::uint32_t, std::uint64_t> next_;
};

void LocalBootstrapRoom::run(const std::function<void(Bootstrap& bootstrap)>& body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(ranks_));
  const auto run_one = [&](int rank) {
    Seat seat(*this, rank);
    run_rank(seat, [&] { body(seat); });
  };
  run_on_threads(ranks_, run_one, [&](int rank, bool started) {
    errors[static_cast<std::size_t>(rank)] = std::current_exception();
    if (!started) Seat(*this, rank).fail(ExitCode::kFailed, "no thread could be started for it");
  });
  for (const std::exception_ptr& error : errors) {
    if (error) std::rethrow_exception(error);
  }
}

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

namespace {

namespace fs = std::filesystem;

constexpr mode_t kOthers = 077;

struct Descriptor {
  int fd = -1;
  explicit Descriptor(int opened) : fd(opened) {}
  ~Descriptor() {
    if (fd >= 0) ::close(fd);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
};

/// What keeps a folder from being this user's alone; empty: nothing.
std::string open_to_others(const fs::path& folder) {
  struct stat info {};
  if (::lstat(folder.c_str(), &info) != 0) return std::strerror(errno);
  if (!S_ISDIR(info.st_mode)) return "it is no folder";
  if (info.st_uid != ::geteuid()) return "it belongs to another user";
  if ((info.st_mode & kOthers) != 0) {
    return fmt::format("others may enter it, its mode is {:04o}", info.st_mode & 07777);
  }
  return {};
}

[[noreturn]] void fail(const fs::path& path) {
  throw Error(fmt::format("{}: cannot write this file: {}", path.string(), std::strerror(errno)),
              ExitCode::kFailed);
}

}  // namespace

fs::path private_folder(const Environment& environment) {
  if (const auto runtime = environment("XDG_RUNTIME_DIR")) {
    fs::path folder = *runtime;
    if (folder.is_absolute() && open_to_others(folder).empty()) return folder;
  }
  fs::path folder = fs::temp_directory_path() / fmt::format("shardwright-{}", ::geteuid());
  ::mkdir(folder.c_str(), 0700);  // it may be there
  const std::string why = open_to_others(folder);
  if (why.empty()) return folder;
  throw Error(
      fmt::format("{}: ranks cannot meet in this folder, {}; expected one of this user with "
                  "mode 0700: remove it, set TMPDIR, or give --rendezvous",
                  folder.string(), why));
}

void write_private_file(const fs::path& path, const std::string& text) {
  fs::path temporary;
  int fd = -1;
  for (int attempt = 0; fd < 0; ++attempt) {
    temporary = path.parent_path() /
                fmt::format(".{}.{}-{}.tmp", path.filename().string(), ::getpid(), attempt);
    fd = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 && errno != EEXIST) fail(path);
  }
  const Descriptor file(fd);
  const ssize_t written = ::write(fd, text.data(), text.size());
  const bool whole = written == static_cast<ssize_t>(text.size());
  if (written >= 0 && !whole) errno = ENOSPC;
  // The flush makes it visible where the folder is shared by machines.
  if (!whole || ::fsync(fd) != 0 || ::rename(temporary.c_str(), path.c_str()) != 0) {
    const int reason = errno;
    ::unlink(temporary.c_str());
    errno = reason;
    fail(path);
  }
}

std::optional<std::string> read_private_file(const fs::path& path, std::size_t most_bytes,
                                             std::string& why) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (file.fd < 0 || ::fstat(file.fd, &info) != 0) {
    why = errno == ELOOP ? "it is a link" : std::strerror(errno);
    return std::nullopt;
  }
  if (!S_ISREG(info.st_mode)) {
    why = "it is no regular file";
  } else if (info.st_uid != ::geteuid()) {
    why = "it belongs to another user";
  } else if ((info.st_mode & kOthers) != 0) {
    why = fmt::format("others may read it, its mode is {:04o}", info.st_mode & 07777);
  } else if (static_cast<std::size_t>(info.st_size) > most_bytes) {
    why = fmt::format("it holds more than {} bytes", most_bytes);
  } else {
    std::string text(static_cast<std::size_t>(info.st_size), '\0');
    const ssize_t count = ::read(file.fd, text.data(), text.size());
    if (count == info.st_size) return text;
    why = count < 0 ? std::strerror(errno) : "it was cut short";
  }
  return std::nullopt;
}

namespace {

constexpr std::size_t kMostFileBytes = 4096;
constexpr std::size_t kLeastKeyBytes = 16;
// Ports made from a job's number: above what systems reserve, below what they give to clients.
constexpr std::int64_t kFirstPort = 20000;
constexpr std::int64_t kPorts = 12000;

/// "HOST PORT SECRET" of the file that rank 0 wrote.
std::optional<BootstrapAddress> read_address(const fs::path& path, std::string& why) {
  const std::optional<std::string> text = read_private_file(path, kMostFileBytes, why);
  if (!text) {
    why = fmt::format("{}: {}", path.string(), why);
    return std::nullopt;
  }
  std::istringstream words(*text);
  BootstrapAddress address;
  std::string port;
  words >> address.host >> port >> address.secret;
  const std::optional<std::int64_t> number = parse_int64(port);
  if (!number || *number < 1 || *number > 65535 || address.secret.empty()) {
    why = fmt::format("{}: it does not say where rank 0 listens", path.string());
    return std::nullopt;
  }
  address.port = static_cast<int>(*number);
  // A machine's own name is not always one that it can look up.
  if (address.host == host_name()) address.host = "localhost";
  return address;
}

[[noreturn]] void refuse_rendezvous(const std::string& wish) {
  throw Error(
      fmt::format("--rendezvous is '{}', expected auto, tcp://HOST:PORT or file:///PATH", wish));
}

Rendezvous parse(const std::string& wish) {
  Rendezvous result;
  if (wish.starts_with("file://")) {
    result.file = wish.substr(7);
    if (result.file.empty() || result.file[0] != '/') refuse_rendezvous(wish);
    return result;
  }
  if (!wish.starts_with("tcp://")) refuse_rendezvous(wish);
  const std::size_t colon = wish.rfind(':');
  result.host = wish.substr(6, colon < 6 ? 0 : colon - 6);
  if (result.host.size() > 2 && result.host.front() == '[' && result.host.back() == ']') {
    result.host = result.host.substr(1, result.host.size() - 2);
  }
  const std::optional<std::int64_t> port = parse_int64(wish.substr(colon + 1));
  if (result.host.empty() || !port || *port < 1 || *port > 65535) refuse_rendezvous(wish);
  result.port = static_cast<int>(*port);
  return result;
}

std::string run_of(const Environment& environment) {
  std::string run;
  for (const char* name : {"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "SLURM_JOB_ID",
                           "SLURM_STEP_ID", "SLURM_RESTART_COUNT", "PMIX_NAMESPACE"}) {
    if (const auto value = environment(name)) run += (run.empty() ? "" : ".") + *value;
  }
  return run;
}

std::string key_of(const Environment& environment) {
  std::string key = environment("SHARDWRIGHT_MEETING_KEY").value_or("");
  if (!key.empty() && key.size() < kLeastKeyBytes) {
    throw Error(
        fmt::format("SHARDWRIGHT_MEETING_KEY has {} characters, expected at least {} that "
                    "nobody can guess, the same for all ranks",
                    key.size(), kLeastKeyBytes));
  }
  return key;
}

}  // namespace

std::string Rendezvous::name() const {
  if (!file.empty()) return "file://" + file;
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("tcp://[{}]:{}", host, port) : fmt::format("tcp://{}:{}", host, port);
}

BootstrapPlace Rendezvous::place() const {
  BootstrapPlace place;
  place.name = name();
  place.key = key;
  place.run = run;
  if (file.empty()) {
    place.port = port;
    place.port_advice = "expected a free one: choose it with MASTER_PORT or --rendezvous";
    place.find = [address = BootstrapAddress{host, port, {}}](std::string&) { return address; };
    place.host = host;
    // Many a machine knows itself by its own name as 127.0.1.1, where ranks on others find nobody.
    if (!on_one_machine && !is_numeric_address(host) && names_loopback(host)) place.host.clear();
    return place;
  }
  if (on_one_machine) place.host = "127.0.0.1";
  place.publish = [path = file](const BootstrapAddress& address) {
    write_private_file(path, fmt::format("{} {} {}\n", address.host, address.port, address.secret));
  };
  place.find = [path = file](std::string& why) { return read_address(path, why); };
  place.port_advice = "expected a port that is free";
  return place;
}

std::string first_slurm_host(const std::string& list) {
  const std::size_t bracket = list.find('[');
  const std::size_t comma = list.find(',');
  if (bracket == std::string::npos || comma < bracket) return list.substr(0, comma);
  const std::size_t end = list.find_first_of(",-]", bracket);
  const std::size_t close = list.find(']', bracket);
  if (end == std::string::npos || close == std::string::npos) return {};
  const std::size_t tail = list.find(',', close);
  return list.substr(0, bracket) + list.substr(bracket + 1, end - bracket - 1) +
         list.substr(close + 1, tail == std::string::npos ? tail : tail - close - 1);
}

Rendezvous choose_rendezvous(const std::string& wish, const LaunchEnvironment& launch,
                             const Environment& environment) {
  Rendezvous result = wish == "auto" ? Rendezvous() : parse(wish);
  result.run = run_of(environment);
  result.key = key_of(environment);
  result.on_one_machine = launch.local_ranks == launch.ranks;
  if (wish != "auto") return result;
  if (!launch.address.empty()) {
    result.host = launch.address;
    result.port = static_cast<int>(launch.port);
    return result;
  }
  if (launch.launcher == Launcher::kSlurm) {
    const auto hosts = environment("SLURM_STEP_NODELIST");
    const auto job = environment("SLURM_JOB_ID");
    const std::optional<std::int64_t> number = job ? parse_int64(*job) : std::nullopt;
    if (hosts && number && *number >= 0) {
      const std::int64_t step = parse_int64(environment("SLURM_STEP_ID").value_or("0")).value_or(0);
      result.host = first_slurm_host(*hosts);
      result.port = static_cast<int>(
          kFirstPort + (*number % kPorts * 16 + std::max<std::int64_t>(step, 0) % kPorts) % kPorts);
      if (!result.host.empty()) return result;
    }
  }
  if (result.on_one_machine) {
    // All ranks have one parent, who is there as long as they are.
    result.file =
        (private_folder(environment) / fmt::format("shardwright-meeting-{}", getppid())).string();
    return result;
  }
  throw Error(
      fmt::format("{} does not tell where {} processes on several machines can meet: give "
                  "--rendezvous tcp://HOST:PORT with the host of rank 0, or "
                  "file:///PATH on a file system that all share",
                  name_of(launch.launcher), launch.ranks));
}

std::unique_ptr<Bootstrap> meet(const Rendezvous& rendezvous, const LaunchEnvironment& launch,
                                const std::string& fingerprint, const BootstrapTimes& times) {
  Introduction self;
  self.rank = static_cast<int>(launch.rank);
  self.ranks = static_cast<int>(launch.ranks);
  self.fingerprint = fingerprint;
  std::unique_ptr<Bootstrap> bootstrap = join_bootstrap(rendezvous.place(), self, times);
  if (self.rank == 0 && !rendezvous.file.empty()) {
    std::error_code ignored;
    fs::remove(rendezvous.file, ignored);
  }
  return bootstrap;
}

}  // namespace shardwright::exec
