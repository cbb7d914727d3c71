// SPDX-License-Identifier: Apache-2.0
// Products of every form, type and placement against plain sums in fp64.
#include "exec/cuda/products.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "exec/cuda/handles.h"
#include "kernels/bf16.h"
#include "kernels/random.h"
#include "sim/core/base/error.h"
#include "tests/exec_cuda/fixture.h"
#include "tests/support/parameter_name.h"

namespace shardwright::exec {
namespace {

using namespace testing;
using cuda::Product;
using cuda::ProductForm;

/// A row-major matrix on the device and the numbers in it.
class Numbers {
 public:
  Numbers(CudaDevice& device, StreamId stream, DType dtype, std::int64_t rows, std::int64_t cols,
          std::int64_t stride, std::uint32_t site, std::int64_t displaced = 0)
      : device_(device), stream_(stream) {
    const auto elements = static_cast<std::size_t>(displaced + rows * stride);
    memory_ = device.allocate(static_cast<Bytes>(elements) * bytes_of(dtype));
    matrix_ = Matrix(advance(memory_->data(), dtype, displaced), dtype, rows, cols, stride);
    std::vector<float> drawn(elements);
    kernels::random_normal({3, kernels::RandomSite::kSynthetic, site}, 0, 0.0, 1.0, drawn);
    store(drawn);
  }
  const Matrix& matrix() const { return matrix_; }
  double at(std::int64_t row, std::int64_t col) const {
    return exact_[static_cast<std::size_t>(row * matrix_.stride + col)];
  }
  std::vector<double> get() {
    std::vector<double> values;
    const auto count = static_cast<std::size_t>(matrix_.rows * matrix_.stride);
    std::vector<float> wide(count);
    std::vector<kernels::BFloat16> narrow(count);
    const bool fp32 = matrix_.dtype == DType::kFp32;
    device_.copy(stream_, fp32 ? static_cast<void*>(wide.data()) : narrow.data(), matrix_.data,
                 static_cast<Bytes>(count) * bytes_of(matrix_.dtype));
    device_.synchronize();
    for (std::size_t i = 0; i < count; ++i) {
      values.push_back(fp32 ? wide[i] : kernels::to_float(narrow[i]));
    }
    return values;
  }

 private:
  void store(const std::vector<float>& drawn) {
    const auto count = static_cast<std::size_t>(matrix_.rows * matrix_.stride);
    std::vector<kernels::BFloat16> narrow;
    for (std::size_t i = 0; i < count; ++i) {
      narrow.push_back(kernels::to_bf16(drawn[i]));
      exact_.push_back(matrix_.dtype == DType::kFp32 ? drawn[i] : kernels::to_float(narrow[i]));
    }
    const void* from =
        matrix_.dtype == DType::kFp32 ? static_cast<const void*>(drawn.data()) : narrow.data();
    device_.copy(stream_, matrix_.data, from, static_cast<Bytes>(count) * bytes_of(matrix_.dtype));
    device_.synchronize();
  }

  CudaDevice& device_;
  StreamId stream_;
  std::unique_ptr<Allocation> memory_;
  Matrix matrix_;
  std::vector<double> exact_;
};

struct Case {
  ProductForm form;
  DType in, out;
  bool adds = false, adds_other = false, biased = false;
  std::int64_t displaced = 0;
};

void PrintTo(const Case& c, std::ostream* out) {
  constexpr const char* kForms[] = {"NT", "NN", "TN"};
  *out << kForms[static_cast<int>(c.form)] << " " << name_of(c.in) << " to " << name_of(c.out);
  if (c.adds) *out << " added";
  if (c.adds_other) *out << " added to another";
  if (c.biased) *out << " biased";
  if (c.displaced != 0) *out << " displaced";
}

class CudaProducts : public OnCuda<::testing::TestWithParam<Case>> {};

TEST_P(CudaProducts, AreSumsOfProducts) {
  const Case c = GetParam();
  constexpr std::int64_t m = 13, n = 24, k = 40;
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  const bool ta = c.form == ProductForm::kTN, tb = c.form == ProductForm::kNT;
  Numbers a(device, s, c.in, ta ? k : m, ta ? m : k, (ta ? m : k) + 3, 1, c.displaced);
  Numbers b(device, s, c.in, tb ? n : k, tb ? k : n, tb ? k : n, 2, c.displaced);
  Numbers out(device, s, c.out, m, n, n, 3, c.displaced);
  Numbers other(device, s, c.out, m, n, n + 8, 4);
  Numbers bias(device, s, c.out, 1, n, n, 5);
  const auto scratch = device.allocate(4096);
  Product product{c.form, a.matrix(), b.matrix(), {}, nullptr, out.matrix()};
  if (c.adds) product.addend = out.matrix();
  if (c.adds_other) product.addend = other.matrix();
  if (c.biased) product.bias = bias.matrix().data;
  std::vector<double> expected;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = c.adds ? out.at(i, j) : c.adds_other ? other.at(i, j) : 0;
      if (c.biased) sum += bias.at(0, j);
      for (std::int64_t x = 0; x < k; ++x) {
        sum += (ta ? a.at(x, i) : a.at(i, x)) * (tb ? b.at(j, x) : b.at(x, j));
      }
      expected.push_back(sum);
    }
  }
  cuda::Products products;
  for (int repeat = 0; repeat < (c.adds ? 1 : 2); ++repeat) {
    products.run(product, scratch->data(), 4096, device.stream(s));
  }
  EXPECT_EQ(products.planned_shapes(), 1u);
  const std::vector<double> got = out.get();
  const double tolerance = c.out == DType::kFp32 ? 2e-5 : 1.0 / 128;
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(got[i], expected[i], tolerance * (1 + std::abs(expected[i]))) << "element " << i;
  }
}

std::vector<Case> cases() {
  std::vector<Case> all;
  for (const ProductForm form : {ProductForm::kNT, ProductForm::kNN, ProductForm::kTN}) {
    for (const auto& [in, out] :
         {std::pair{DType::kFp32, DType::kFp32}, std::pair{DType::kBf16, DType::kBf16},
          std::pair{DType::kBf16, DType::kFp32}}) {
      all.push_back({form, in, out});
      all.push_back({form, in, out, true});
      all.push_back({form, in, out, false, true, in == out});
      all.push_back({form, in, out, false, false, false, 1});
    }
  }
  all.push_back({ProductForm::kNT, DType::kBf16, DType::kBf16, false, false, true});
  return all;
}

INSTANTIATE_TEST_SUITE_P(All, CudaProducts, ::testing::ValuesIn(cases()), parameter_name);

using CudaProduct = OnCuda<::testing::Test>;

TEST_F(CudaProduct, KeepsAPlanForEveryShape) {
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  cuda::Products products;
  for (const std::int64_t rows : {8, 16, 8, 16, 8}) {
    Numbers x(device, s, DType::kFp32, rows, 8, 8, 1), w(device, s, DType::kFp32, 8, 8, 8, 2);
    Numbers y(device, s, DType::kFp32, rows, 8, 8, 3);
    products.run({ProductForm::kNT, x.matrix(), w.matrix(), {}, nullptr, y.matrix()}, nullptr, 0,
                 device.stream(s));
    device.synchronize();
  }
  EXPECT_EQ(products.planned_shapes(), 2u);
}

// The gradient of a later micro-batch has the algorithm, and so the bits, of the first one's.
TEST_F(CudaProduct, AddsInPlaceByThePlanThatWrites) {
  CudaDevice device;
  const StreamId s = device.make_stream("compute", 0);
  cuda::Products products;
  Numbers d_y(device, s, DType::kBf16, 24, 8, 8, 1), x(device, s, DType::kBf16, 24, 16, 16, 2);
  Numbers d_w(device, s, DType::kFp32, 8, 16, 16, 3);
  Product product{ProductForm::kTN, d_y.matrix(), x.matrix(), {}, nullptr, d_w.matrix()};
  products.run(product, nullptr, 0, device.stream(s));
  const std::vector<double> one = d_w.get();
  product.addend = d_w.matrix();
  products.run(product, nullptr, 0, device.stream(s));
  const std::vector<double> two = d_w.get();
  for (std::size_t i = 0; i < one.size(); ++i) ASSERT_EQ(two[i], 2 * one[i]);
  EXPECT_EQ(products.planned_shapes(), 1u);
}

}  // namespace
}  // namespace shardwright::exec
