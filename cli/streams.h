// SPDX-License-Identifier: Apache-2.0
// Where a verb prints, and who may end it. In a process of its own that is stdout, stderr and the
// signals. Where the program is a peer of another process (cli/embed: a Python module, a page),
// the thread that runs a verb has streams and a wish to end of its own, so that several may run at
// once and nothing of the host's is touched.
#pragma once

#include <atomic>
#include <cstdio>
#include <string_view>

namespace shardwright::cli {

/// What a host gives to the verb that it runs. Streams are not null and outlive the verb.
struct Host {
  std::FILE* results;
  std::FILE* messages;
  const std::atomic<bool>* wish;  // turns true when the host wants an end; null: signals do
};

/// While one of these lives, verbs of this thread run for `host`.
class BootstrapPeer {
 public:
  explicit BootstrapPeer(const Host& host);
  ~BootstrapPeer();
  BootstrapPeer(const BootstrapPeer&) = delete;
  BootstrapPeer& operator=(const BootstrapPeer&) = delete;

 private:
  Host host_;
  const Host* before_;
};

/// Of this thread; null where the program has a process of its own.
const Host* host();

/// Results: stdout, or the host's.
std::FILE* results();
/// Everything else: stderr, or the host's.
std::FILE* messages();
/// A line of messages(), without what a terminal would obey: names of files may be a stranger's.
void notify(std::string_view sentence);

}  // namespace shardwright::cli
