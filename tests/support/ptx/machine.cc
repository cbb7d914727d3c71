// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptx/machine.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "tests/support/ptx/operations.h"

namespace ptx {
namespace {

constexpr std::uint32_t kPoison = 0x7fa17fa1u;  // a NaN, as one float or as two bf16
constexpr std::uint64_t kMostInstructions = std::uint64_t{1} << 26;  // of the warps of a launch

std::string text(const Size3& v) {
  return "(" + std::to_string(v.x) + ", " + std::to_string(v.y) + ", " + std::to_string(v.z) + ")";
}

std::uint32_t special(const std::string& name, const Warp& warp, unsigned lane) {
  const Size3& block = warp.block->launch->block;
  const std::uint32_t thread = 32 * warp.number + lane;
  if (name == "%laneid") return lane;
  const auto part = [&](const Size3& all) {
    return name.back() == 'x' ? all.x : name.back() == 'y' ? all.y : all.z;
  };
  if (name.starts_with("%tid.")) {
    return part({thread % block.x, thread / block.x % block.y, thread / block.x / block.y});
  }
  if (name.starts_with("%ntid.")) return part(block);
  if (name.starts_with("%ctaid.")) return part(warp.block->index);
  if (name.starts_with("%nctaid.")) return part(warp.block->launch->grid);
  throw Failure("the special register '" + name + "' is not known");
}

void fill_with_poison(std::vector<std::byte>& bytes, std::size_t count) {
  bytes.resize((count + 3) / 4 * 4);
  for (std::size_t at = 0; at < bytes.size(); at += 4) std::memcpy(&bytes[at], &kPoison, 4);
}

/// The warps of one block.
class Scheduler {
 public:
  Scheduler(const Kernel& kernel, const Launch& launch, std::vector<bool>& executed);
  void run_block(Size3 index);

 private:
  void prepare(Size3 index);
  bool run_warp(Warp& warp);
  std::uint32_t run_group(Warp& warp, std::uint32_t group, std::uint32_t at, std::uint32_t limit);
  std::uint32_t meet(Warp& warp, const Instruction& instruction, std::uint32_t mask,
                     std::uint32_t at);
  void leave(Warp& warp, std::uint32_t lanes, std::uint32_t pc);

  const Kernel& kernel_;
  const Launch& launch_;
  std::vector<bool>& executed_;
  Block block_;
  std::vector<Warp> warps_;
  std::uint64_t left_ = kMostInstructions;
};

Scheduler::Scheduler(const Kernel& kernel, const Launch& launch, std::vector<bool>& executed)
    : kernel_(kernel), launch_(launch), executed_(executed) {
  block_.kernel = &kernel;
  block_.launch = &launch;
  block_.parameters.resize(kernel.parameter_bytes);
  if (launch.arguments.size() != kernel.parameters.size()) {
    throw Failure("kernel " + kernel.name + ": other than its number of arguments");
  }
  for (std::size_t i = 0; i < launch.arguments.size(); ++i) {
    const auto& [offset, bytes] = kernel.parameters[i];
    if (launch.arguments[i].size() != bytes) {
      throw Failure("kernel " + kernel.name + ": an argument has another size than its parameter");
    }
    std::copy(launch.arguments[i].begin(), launch.arguments[i].end(),
              block_.parameters.begin() + static_cast<std::ptrdiff_t>(offset));
  }
  warps_.resize((launch.block.count() + 31) / 32);
}

void Scheduler::prepare(Size3 index) {
  const std::uint64_t threads = launch_.block.count();
  block_.index = index;
  fill_with_poison(block_.shared, kernel_.shared_bytes + launch_.dynamic_shared_bytes);
  fill_with_poison(block_.local, kernel_.local_bytes * threads);
  for (std::size_t w = 0; w < warps_.size(); ++w) {
    Warp& warp = warps_[w];
    warp.block = &block_;
    warp.number = static_cast<std::uint32_t>(w);
    const std::uint64_t lanes = std::min<std::uint64_t>(32, threads - 32 * w);
    warp.alive = lanes == 32 ? kAllLanes : (1u << lanes) - 1;
    warp.waiting = warp.at_barrier = 0;
    std::fill(std::begin(warp.pc), std::end(warp.pc), 0);
    for (auto& groups : warp.copies) groups.clear();
    if (warp.registers.empty()) {
      warp.registers.assign(32 * std::size_t{kernel_.rows}, std::uint64_t{kPoison} << 32 | kPoison);
    }
    for (const FilledRow& filled : kernel_.filled) {
      for (unsigned lane = 0; lane < 32; ++lane) {
        warp.row(filled.row)[lane] =
            filled.special.empty() ? filled.value : special(filled.special, warp, lane);
      }
    }
  }
}

void Scheduler::leave(Warp& warp, std::uint32_t lanes, std::uint32_t pc) {
  for_lanes(lanes, [&](unsigned lane) { warp.pc[lane] = pc; });
}

/// Lanes of the mask come to an instruction that lanes do together; which lanes did it, if any.
std::uint32_t Scheduler::meet(Warp& warp, const Instruction& instruction, std::uint32_t mask,
                              std::uint32_t at) {
  warp.waiting |= mask;
  leave(warp, mask, at);
  const auto lane = static_cast<unsigned>(std::countr_zero(mask));
  std::uint32_t wanted = kAllLanes;
  if (instruction.kind == Kind::kTogether) {
    const std::uint64_t* masks = warp.row(instruction.row[instruction.rows - 1]);
    wanted = static_cast<std::uint32_t>(masks[lane]);
    for_lanes(mask, [&](unsigned other) {
      if (static_cast<std::uint32_t>(masks[other]) != wanted) {
        warp.fail("lanes meet with different masks at " + kernel_.opcodes[instruction.opcode]);
      }
    });
  }
  if ((wanted & mask) != mask || (wanted & warp.alive) != wanted) {
    warp.fail(kernel_.opcodes[instruction.opcode] +
              " with a mask that leaves out a lane that is there, or wants one that has ended");
  }
  std::uint32_t here = 0;
  for_lanes(warp.waiting,
            [&](unsigned other) { here |= (warp.pc[other] == at ? 1u : 0) << other; });
  if ((here & wanted) != wanted) return 0;
  instruction.execute(warp, instruction, wanted);
  warp.waiting &= ~wanted;
  leave(warp, wanted, at + 1);
  return wanted;
}

/// Runs the lanes of `group` from `at` on until they part, wait, end, or come to where others are.
/// Returns how many instructions.
std::uint32_t Scheduler::run_group(Warp& warp, std::uint32_t group, std::uint32_t at,
                                   std::uint32_t limit) {
  for (std::uint32_t done = 1;; ++done) {
    const Instruction& instruction = kernel_.code[at];
    std::uint32_t mask = group;
    if (instruction.guarded) {
      const std::uint64_t* guard = warp.row(instruction.guard);
      for_lanes(group, [&](unsigned lane) {
        if ((guard[lane] != 0) == instruction.guard_negated) mask &= ~(1u << lane);
      });
    }
    if (mask != 0) executed_[at] = true;
    switch (instruction.kind) {
      case Kind::kLanewise:
        if (mask != 0) instruction.execute(warp, instruction, mask);
        ++at;
        break;
      case Kind::kBranch:
        if (mask != 0 && mask != group) {
          leave(warp, mask, instruction.target);
          leave(warp, group & ~mask, at + 1);
          return done;
        }
        at = mask != 0 ? instruction.target : at + 1;
        break;
      case Kind::kReturn:
        warp.alive &= ~mask;
        leave(warp, group, at + 1);
        if ((group &= ~mask) == 0) return done;
        ++at;
        break;
      case Kind::kBarrier:
        warp.at_barrier |= mask;
        leave(warp, group, at + 1);
        return done;
      case Kind::kTogether:
      case Kind::kWholeWarp:
        leave(warp, group & ~mask, at + 1);
        if (mask == 0) {
          ++at;
          break;
        }
        if (meet(warp, instruction, mask, at) != group) return done;
        ++at;
        break;
    }
    if (at >= limit || done == kMostInstructions / 64) {
      leave(warp, group, at);
      return done;
    }
  }
}

/// As far as it gets; false when it could not go on at all.
bool Scheduler::run_warp(Warp& warp) {
  bool progress = false;
  while (const std::uint32_t ready = warp.alive & ~warp.waiting & ~warp.at_barrier) {
    std::uint32_t lowest = ~0u, next = ~0u, group = 0;
    for_lanes(ready, [&](unsigned lane) { lowest = std::min(lowest, warp.pc[lane]); });
    for_lanes(ready, [&](unsigned lane) {
      if (warp.pc[lane] == lowest) {
        group |= 1u << lane;
      } else {
        next = std::min(next, warp.pc[lane]);
      }
    });
    const std::uint64_t done = run_group(warp, group, lowest, next);
    if (done >= left_) warp.fail("runs on and on");
    left_ -= done;
    progress = true;
  }
  return progress;
}

void Scheduler::run_block(Size3 index) {
  prepare(index);
  const std::uint64_t threads = launch_.block.count();
  while (true) {
    bool progress = false;
    std::uint64_t at_barrier = 0, alive = 0;
    for (Warp& warp : warps_) {
      progress = run_warp(warp) || progress;
      at_barrier += static_cast<std::uint64_t>(std::popcount(warp.at_barrier));
      alive += static_cast<std::uint64_t>(std::popcount(warp.alive));
    }
    if (alive == 0) return;
    if (at_barrier == threads) {
      for (Warp& warp : warps_) warp.at_barrier = 0;
    } else if (!progress) {
      warps_[0].fail(std::to_string(at_barrier) + " of " + std::to_string(threads) +
                     " threads wait at a barrier, " + std::to_string(threads - alive) +
                     " have ended and the others wait for lanes of their warps");
    }
  }
}

}  // namespace

void Warp::fail(const std::string& what) const {
  throw Failure("kernel " + block->kernel->name + ", block " + text(block->index) + ", warp " +
                std::to_string(number) + ": " + what);
}

std::byte* Warp::reach(Space space, std::uint64_t address, std::size_t bytes, unsigned lane) {
  if (address % bytes != 0) {
    fail("an address that is no multiple of " + std::to_string(bytes) + " bytes");
  }
  const auto within = [&](std::vector<std::byte>& memory, std::size_t begin, std::size_t size,
                          const char* name) {
    if (address > size || bytes > size - address) {
      fail("lane " + std::to_string(lane) + " reaches byte " + std::to_string(address) + " of " +
           std::to_string(size) + " of " + name);
    }
    return memory.data() + begin + address;
  };
  const std::size_t local_bytes = block->kernel->local_bytes;
  switch (space) {
    case Space::kShared:
      return within(block->shared, 0,
                    block->kernel->shared_bytes + block->launch->dynamic_shared_bytes,
                    "shared memory");
    case Space::kLocal:
      return within(block->local, local_bytes * (32 * std::size_t{number} + lane), local_bytes,
                    "local memory");
    case Space::kParameters:
      return within(block->parameters, 0, block->parameters.size(), "the parameters");
    case Space::kGlobal:
      break;
  }
  auto* at = reinterpret_cast<std::byte*>(address);  // NOLINT(performance-no-int-to-ptr)
  const auto& regions = block->launch->global;
  const auto holds = [&](std::size_t i) {
    return i < regions.size() && at >= regions[i].data() &&
           at + bytes <= regions[i].data() + regions[i].size();
  };
  if (!holds(block->last_region)) {
    const auto after = std::upper_bound(
        regions.begin(), regions.end(), at,
        [](const std::byte* address_, const auto& region) { return address_ < region.data(); });
    block->last_region = static_cast<std::size_t>(after - regions.begin()) - 1;
    if (!holds(block->last_region)) {
      fail("lane " + std::to_string(lane) + " reaches " + std::to_string(bytes) +
           " bytes of global memory that nobody allocated");
    }
  }
  return at;
}

void run(const Kernel& kernel, const Launch& launch, std::vector<bool>& executed) {
  executed.resize(kernel.code.size());
  Scheduler scheduler(kernel, launch, executed);
  for (std::uint32_t z = 0; z < launch.grid.z; ++z) {
    for (std::uint32_t y = 0; y < launch.grid.y; ++y) {
      for (std::uint32_t x = 0; x < launch.grid.x; ++x) scheduler.run_block({x, y, z});
    }
  }
}

}  // namespace ptx
