// SPDX-License-Identifier: Apache-2.0
// What every implementation of the kernels owes: the tests in x_contract_test.cc. They reach
// kernels through exec/device.h, as the executor does, and are compiled into three programs:
// kernels_tests (the host's instruction sets), cuda_on_cpu_tests (CUDA, emulated) and
// cuda_kernel_tests (a GPU). Each of them says in executors() what it has. What one side alone has
// is tested beside it.
//
// Numbers are doubles that hold what an element type can hold; arrays on a device have bytes around
// them that nothing may touch.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "exec/device.h"
#include "exec/host/host_device.h"
#include "exec/typed.h"
#include "tests/kernels/support.h"
#include "tests/support/parameter_name.h"

namespace shardwright::kernels::contract {

using exec::Device;
using exec::StreamId;
using exec::with_types;
using testing::expect_close;
using testing::random_tokens;
using Numbers = std::vector<double>;
using Tokens = std::vector<std::int32_t>;

struct Executor {
  std::string name;
  /// Must give the same bits: numbers of threads, or orders of threads and blocks.
  int variants = 1;
  std::function<std::shared_ptr<Device>(int variant)> make;
  /// Called before a variant runs.
  std::function<void(int variant)> enter = [](int) {};
  /// Why there is none on this machine; empty where there is one.
  std::string missing;
  /// Wrong tokens and positions are an Error; else they show as NaN. Logits are fp32.
  bool is_host = false;
  /// Multiplies and adds in one rounding, and gives the bits of all others that do.
  bool is_fused = true;
  bool is_slow = false;
};
/// Those of this program.
std::vector<Executor> executors();

/// Several threads have streams of their own.
inline std::shared_ptr<Device> make_host(int threads, host::Isa isa) {
  struct Host {
    host::Parallel parallel;
    exec::HostDevice device;
    Host(int count, host::Isa set)
        : parallel(count, set),
          device(parallel, count == 1 ? exec::StreamMode::kInline : exec::StreamMode::kThreads) {}
  };
  const auto made = std::make_shared<Host>(threads, isa);
  return {made, &made->device};
}
/// The host whose bits all that is fused must give where it is said so; null where the processor
/// has none.
inline std::shared_ptr<Device> fused_host() {
  return host::supported(host::Isa::kAvx2) ? make_host(1, host::Isa::kAvx2) : nullptr;
}

struct Case {
  Executor executor;
  DType type = DType::kFp32;
};
inline void PrintTo(const Case& one, std::ostream* out) {
  *out << one.executor.name << "_" << name_of(one.type);
}

/// Every executor with both element types, or those for which `which` is true.
inline std::vector<Case> cases(const std::function<bool(const Executor&, DType)>& which =
                                   [](const Executor&, DType) { return true; }) {
  std::vector<Case> all;
  for (const Executor& one : executors()) {
    for (const DType type : {DType::kFp32, DType::kBf16}) {
      if (which(one, type)) all.push_back({one, type});
    }
  }
  return all;
}

/// Of what has nothing to do with types, or takes long.
inline std::vector<Case> fp32_cases() {
  return cases([](const Executor&, DType type) { return type == DType::kFp32; });
}

inline double roundoff(DType type) {
  return type == DType::kFp32 ? 0x1p-24 : 0x1p-8;
}
/// Rounded once.
inline double rounded(DType type, double value) {
  const auto narrow = static_cast<float>(value);
  return type == DType::kFp32 ? narrow : to_float(to_bf16(narrow));
}

inline Numbers random(DType type, std::uint64_t seed, std::int64_t count, double deviation = 1.0,
                      double mean = 0.0) {
  Numbers numbers;
  with_types({type}, [&]<class T>() {
    numbers = testing::random_data<T>(seed, count, deviation, mean).exact;
  });
  return numbers;
}

/// Columns [first, first + count) of rows `stride` long.
template <class T>
std::vector<T> columns(const std::vector<T>& rows, std::int64_t stride, std::int64_t first,
                       std::int64_t count) {
  std::vector<T> result;
  for (std::int64_t at = first; at < std::ssize(rows); at += stride) {
    result.insert(result.end(), rows.begin() + at, rows.begin() + at + count);
  }
  return result;
}
/// The same put back.
inline void place(const Numbers& part, Numbers& rows, std::int64_t stride, std::int64_t first,
                  std::int64_t count) {
  for (std::int64_t i = 0; i < std::ssize(part); ++i) {
    rows[static_cast<std::size_t>(i / count * stride + first + i % count)] =
        part[static_cast<std::size_t>(i)];
  }
}
inline Numbers operator+(Numbers a, const Numbers& b) {
  for (std::size_t i = 0; i < a.size(); ++i) a[i] += b.at(i);
  return a;
}
inline Numbers operator*(double factor, Numbers a) {
  for (double& one : a) one *= factor;
  return a;
}

/// Elements of T in a device's memory, `offset` of them behind an address that is a multiple of 64.
template <class T>
class OnDevice {
 public:
  OnDevice(Device& device, StreamId stream, const std::vector<T>& values, std::int64_t offset)
      : device_(&device),
        stream_(stream),
        count_(values.size()),
        offset_(static_cast<std::size_t>(offset)) {
    std::vector<unsigned char> all((offset_ + count_) * sizeof(T) + kBehind, kAround);
    if (count_ > 0)
      std::memcpy(all.data() + offset_ * sizeof(T), values.data(), count_ * sizeof(T));
    memory_ = device.allocate(std::ssize(all));
    device.copy(stream, memory_->data(), all.data(), std::ssize(all));
    device.synchronize();
  }
  T* data() const { return static_cast<T*>(memory_->data()) + offset_; }
  /// Waits for the device; checks what lies around the elements.
  std::vector<T> get() const {
    std::vector<unsigned char> all((offset_ + count_) * sizeof(T) + kBehind);
    device_->copy(stream_, all.data(), memory_->data(), std::ssize(all));
    device_->synchronize();
    const std::size_t begin = offset_ * sizeof(T), end = begin + count_ * sizeof(T);
    const auto untouched = [](unsigned char byte) { return byte == kAround; };
    EXPECT_TRUE(
        std::all_of(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(begin), untouched))
        << "a write before the array";
    EXPECT_TRUE(std::all_of(all.begin() + static_cast<std::ptrdiff_t>(end), all.end(), untouched))
        << "a write behind the array";
    std::vector<T> values(count_);
    if (count_ > 0) std::memcpy(values.data(), all.data() + begin, count_ * sizeof(T));
    return values;
  }
  /// As doubles.
  Numbers numbers() const {
    Numbers result;
    for (const T value : get()) result.push_back(static_cast<double>(value));
    return result;
  }

 private:
  static constexpr unsigned char kAround = 0x5a;
  static constexpr std::size_t kBehind = 64;
  Device* device_;
  StreamId stream_;
  std::size_t count_, offset_;
  std::unique_ptr<exec::Allocation> memory_;
};

/// The same of a type that the test does not know.
class Tensor {
 public:
  Tensor(Device& device, StreamId stream, DType type, const Numbers& numbers, std::int64_t offset)
      : type_(type),
        size_(std::ssize(numbers)),
        bytes_(device, stream, bytes_of(type, numbers), offset * shardwright::bytes_of(type)) {}
  void* data() const { return bytes_.data(); }
  float* floats() const { return static_cast<float*>(data()); }
  exec::Array array() const { return {data(), type_, size_}; }
  exec::Matrix matrix(std::int64_t cols) const { return {data(), type_, size_ / cols, cols}; }
  exec::Matrix matrix(std::int64_t cols, std::int64_t stride) const {
    return {data(), type_, size_ / stride, cols, stride};
  }
  Numbers get() const {
    const std::vector<unsigned char> bytes = bytes_.get();
    Numbers numbers(static_cast<std::size_t>(size_));
    with_types({type_}, [&]<class T>() {
      std::vector<T> values(numbers.size());
      std::memcpy(values.data(), bytes.data(), bytes.size());
      std::ranges::transform(values, numbers.begin(), [](T value) { return to_float(value); });
    });
    return numbers;
  }

 private:
  static std::vector<unsigned char> bytes_of(DType type, const Numbers& numbers) {
    std::vector<unsigned char> bytes;
    with_types({type}, [&]<class T>() {
      std::vector<T> values(numbers.size());
      std::ranges::transform(numbers, values.begin(), [](double number) {
        return from_float<T>(static_cast<float>(number));
      });
      bytes.resize(values.size() * sizeof(T));
      std::memcpy(bytes.data(), values.data(), bytes.size());
    });
    return bytes;
  }

  DType type_;
  std::int64_t size_;
  OnDevice<unsigned char> bytes_;
};

/// A device, one stream of it, and what lies there.
struct Place {
  std::shared_ptr<Device> owner;
  StreamId stream;

  explicit Place(std::shared_ptr<Device> device)
      : owner(std::move(device)), stream(owner->make_stream("compute", 0)) {}
  Device* operator->() const { return owner.get(); }

  Tensor put(DType type, const Numbers& numbers, std::int64_t offset = 0) const {
    return {*owner, stream, type, numbers, offset};
  }
  /// Garbage, so that what is not written shows.
  Tensor nans(DType type, std::int64_t count, std::int64_t offset = 0) const {
    return put(type, Numbers(static_cast<std::size_t>(count), NAN), offset);
  }
  Tensor floats(std::int64_t count) const { return nans(DType::kFp32, count); }
  template <class T>
  OnDevice<T> raw(const std::vector<T>& values, std::int64_t offset = 0) const {
    return {*owner, stream, values, offset};
  }
  OnDevice<std::int32_t> integers(std::int64_t count) const {
    return raw(Tokens(static_cast<std::size_t>(count), -7));
  }
};

using Results = std::vector<Numbers>;

inline bool same_bits(const Results& a, const Results& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const Numbers& x, const Numbers& y) { return testing::same_bits(x, y); });
}

class Kernels : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    if (!executor().missing.empty()) GTEST_SKIP() << executor().missing;
    for (int variant = 0; variant < executor().variants; ++variant) {
      places_.emplace_back(executor().make(variant));
    }
  }
  void TearDown() override {
    if (!places_.empty()) executor().enter(0);
  }
  const Executor& executor() const { return GetParam().executor; }
  DType type() const { return GetParam().type; }
  double once() const { return roundoff(type()) + 1e-6; }
  const Place& first() const { return places_.front(); }

  /// What `compute(place)` returns, Results, and that all variants give its bits.
  template <class Compute>
  Results everywhere(Compute compute) {
    const Results result = compute(first());
    for (int variant = 1; variant < executor().variants; ++variant) {
      executor().enter(variant);
      EXPECT_TRUE(same_bits(compute(places_[static_cast<std::size_t>(variant)]), result))
          << "variant " << variant;
    }
    executor().enter(0);
    return result;
  }
  /// The same, and the bits of all others that are fused.
  template <class Compute>
  Results everywhere_alike(Compute compute) {
    const Results result = everywhere(compute);
    if (const auto host = executor().is_fused ? fused_host() : nullptr) {
      EXPECT_TRUE(same_bits(compute(Place(host)), result)) << "not as on the host";
    }
    return result;
  }
  /// Shapes for all, and large ones for who is not slow.
  template <class Shape>
  std::vector<Shape> shapes(std::vector<Shape> all, std::vector<Shape> large) const {
    if (!executor().is_slow) all.insert(all.end(), large.begin(), large.end());
    return all;
  }

 private:
  std::vector<Place> places_;
};

}  // namespace shardwright::kernels::contract
