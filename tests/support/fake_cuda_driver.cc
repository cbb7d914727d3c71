// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 for tests: answers as a driver for CUDA 12.4 with two GPUs would, or in the ways
// that FAKE_CUDA names. Built as a library of its own; no test links it.
#include <cstdlib>
#include <cstring>
#include <string_view>

namespace {

bool mode(std::string_view name) {
  const char* value = std::getenv("FAKE_CUDA");
  return value != nullptr && name == value;
}

}  // namespace

extern "C" {

int cuDriverGetVersion(int* version) {
  if (mode("stub")) return 34;  // CUDA_ERROR_STUB_LIBRARY
  *version = mode("cuda13") ? 13000 : 12040;
  return 0;
}

int cuInit(unsigned /*flags*/) {
  // CUDA_ERROR_NO_DEVICE, CUDA_ERROR_SYSTEM_NOT_READY
  return mode("no_device") ? 100 : mode("not_ready") ? 802 : 0;
}

int cuGetErrorString(int status, const char** text) {
  *text = status == 802 ? "system not yet initialized" : "no CUDA-capable device is detected";
  return 0;
}

int cuDeviceGetCount(int* count) {
  *count = 2;
  return 0;
}

int cuDeviceGetName(char* name, int length, int /*device*/) {
  std::strncpy(name, "NVIDIA Test GPU", static_cast<std::size_t>(length));
  return 0;
}

int cuDeviceTotalMem_v2(std::size_t* bytes, int /*device*/) {
  *bytes = std::size_t{80} << 30;
  return 0;
}

int cuDeviceCanAccessPeer(int* can, int /*device*/, int /*peer*/) {
  *can = mode("no_peers") ? 0 : 1;
  return 0;
}

int cuDeviceGetAttribute(int* value, int attribute, int /*device*/) {
  *value = attribute == 16 ? 132 : attribute == 75 ? 9 : 0;
  return 0;
}

}  // extern "C"
