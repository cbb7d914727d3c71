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

bool Socket::send_all(std::span<const std::byte> bytes) const noexcept {
  while (!bytes.empty()) {
    const ssize_t sent = send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
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

Listener listen_on(int port) {
  Listener listener;
  // IPv6 sockets take IPv4 connections, too, where the machine has IPv6 at all.
  listener.socket = Socket(socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const bool v6 = listener.socket.is_open();
  if (!v6) listener.socket = Socket(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int fd = listener.socket.fd();
  if (fd < 0) fail("socket");
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (v6) set_option(fd, IPPROTO_IPV6, IPV6_V6ONLY, 0);
  sockaddr_in6 six{};
  six.sin6_family = AF_INET6;
  six.sin6_addr = in6addr_any;
  six.sin6_port = htons(static_cast<std::uint16_t>(port));
  sockaddr_in four{};
  four.sin_family = AF_INET;
  four.sin_addr.s_addr = htonl(INADDR_ANY);
  four.sin_port = htons(static_cast<std::uint16_t>(port));
  const auto* address =
      v6 ? reinterpret_cast<const sockaddr*>(&six) : reinterpret_cast<const sockaddr*>(&four);
  socklen_t size = v6 ? sizeof six : sizeof four;
  if (bind(fd, address, size) != 0) fail("bind");
  if (listen(fd, kWaitingConnections) != 0) fail("listen");
  sockaddr_storage bound{};
  size = sizeof bound;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) fail("getsockname");
  listener.port =
      ntohs(bound.ss_family == AF_INET6 ? reinterpret_cast<const sockaddr_in6&>(bound).sin6_port
                                        : reinterpret_cast<const sockaddr_in&>(bound).sin_port);
  return listener;
}

Socket accept_from(const Listener& listener) {
  Socket socket(accept4(listener.socket.fd(), nullptr, nullptr, SOCK_CLOEXEC));
  if (socket.is_open()) prepare(socket.fd());
  return socket;
}

Socket connect_to(const std::string& host, int port, Deadline deadline, std::string& why) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int status = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found)) {
    why = gai_strerror(status);
    return {};
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(found, &freeaddrinfo);
  Socket socket;
  for (const addrinfo* at = found; at != nullptr && !socket.is_open(); at = at->ai_next) {
    if (const int status = connect_address(*at, deadline, socket)) why = std::strerror(status);
  }
  return socket;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "localhost";
}

}  // namespace shardwright::exec
