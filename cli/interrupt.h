// Ctrl-C as a wish to end: the first one sets a flag that long work looks at, the second one kills.
#pragma once

#include <atomic>

namespace shardwright::cli {

/// While one of these lives, the first SIGINT or SIGTERM sets the flag instead of ending the
/// program; another one ends it, as usual. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>& flag() const;
};

}  // namespace shardwright::cli
