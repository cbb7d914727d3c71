// SPDX-License-Identifier: Apache-2.0
#include "tests/support/ptx/math_functions.h"

#include <cstring>

#include "tests/support/cuda_on_cpu/emulation.h"
#include "tests/support/ptx/machine.h"
#include "tests/support/ptx/oracle.h"

namespace ptx {
namespace {

std::map<std::string, Kernel>& functions_of_math() {
  static std::map<std::string, Kernel> all;  // by the name of the function
  return all;
}

template <class T>
std::vector<std::byte> argument(T value) {
  std::vector<std::byte> bytes(sizeof value);
  std::memcpy(bytes.data(), &value, sizeof value);
  return bytes;
}

template <class T>
T value_at(const Kernel& kernel, T x) {
  T y{};
  Launch launch;
  launch.arguments = {argument(x), argument(&y)};
  launch.global = {std::as_writable_bytes(std::span(&y, 1))};
  std::vector<bool> executed;
  run(kernel, launch, executed);
  return y;
}

const Kernel& function_of_math(const std::string& name) {
  const auto found = functions_of_math().find(name);
  if (found == functions_of_math().end()) throw Failure("no kernel computes " + name);
  return found->second;
}

}  // namespace

void use_math_functions(const std::string& text) {
  for (auto& [name, kernel] : parse(text)) {
    const std::string whole = demangled(name);  // ptx::NAME_of(...)
    functions_of_math()[whole.substr(5, whole.find("_of(") - 5)] = std::move(kernel);
  }
  auto& functions = cuda_on_cpu::math_functions;
  functions.expf = [](float x) { return value_at(function_of_math("expf"), x); };
  functions.exp2f = [](float x) { return value_at(function_of_math("exp2f"), x); };
  functions.logf = [](float x) { return value_at(function_of_math("logf"), x); };
  functions.tanhf = [](float x) { return value_at(function_of_math("tanhf"), x); };
  functions.erfcf = [](float x) { return value_at(function_of_math("erfcf"), x); };
  functions.log = [](double x) { return value_at(function_of_math("log"), x); };
}

}  // namespace ptx
