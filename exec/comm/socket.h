// SPDX-License-Identifier: Apache-2.0
// A TCP connection, as little of it as rendezvous need. Failures of the network are values here:
// who calls knows what they mean.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace shardwright::exec {

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

/// Whether this machine takes the name for itself alone: "localhost", and often its own name.
bool names_loopback(const std::string& host);
bool is_numeric_address(const std::string& host);

/// A connection, or one that is not open and in `why` the system's reason.
Socket connect_to(const std::string& host, int port, Deadline deadline, std::string& why);

std::string host_name();

}  // namespace shardwright::exec
