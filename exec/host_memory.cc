// SPDX-License-Identifier: Apache-2.0
#include "exec/host_memory.h"

#include <fmt/core.h>

#include <new>

#include "sim/core/arena.h"
#include "sim/core/base/error.h"

namespace shardwright::exec {
namespace {

class PageableMemory final : public Allocation {
 public:
  explicit PageableMemory(Bytes bytes)
      : data_(::operator new(static_cast<std::size_t>(bytes), kAlignment)) {}
  PageableMemory(const PageableMemory&) = delete;
  PageableMemory& operator=(const PageableMemory&) = delete;
  ~PageableMemory() override { ::operator delete(data_, kAlignment); }
  void* data() const override { return data_; }

 private:
  static constexpr std::align_val_t kAlignment{kArenaAlignment};
  void* data_;
};

}  // namespace

std::unique_ptr<Allocation> pageable_memory(Bytes bytes) {
  try {
    return std::make_unique<PageableMemory>(bytes);
  } catch (const std::bad_alloc&) {
    throw Error(fmt::format("the machine refuses {} bytes of memory", bytes), ExitCode::kFailed);
  }
}

}  // namespace shardwright::exec
