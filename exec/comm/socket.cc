// SPDX-License-Identifier: Apache-2.0
#include "exec/comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>

namespace shardwright::exec {
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

Socket connect_to(const std::string& host, int port, Deadline deadline, std::string& why) {
  const Addresses found = look_up(host, port, why);
  Socket socket;
  for (const addrinfo* at = found.get(); at != nullptr && !socket.is_open(); at = at->ai_next) {
    if (const int status = connect_address(*at, deadline, socket)) why = std::strerror(status);
  }
  return socket;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace shardwright::exec
