// SPDX-License-Identifier: Apache-2.0
// The first failure of a device's operations, from whatever thread.
#pragma once

#include <atomic>
#include <exception>
#include <mutex>

namespace shardwright::exec {

class Failure {
 public:
  /// Keeps the first one; later ones follow from it.
  void keep(std::exception_ptr error);
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  /// Throws the failure if there is one.
  void rethrow() const;

 private:
  mutable std::mutex mutex_;
  std::exception_ptr error_;
  std::atomic<bool> failed_{false};
};

}  // namespace shardwright::exec
