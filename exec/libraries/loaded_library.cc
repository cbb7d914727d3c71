// SPDX-License-Identifier: Apache-2.0
#include "exec/libraries/loaded_library.h"

#include <cublasLt.h>
#include <dlfcn.h>
#include <fmt/core.h>
#include <link.h>
#include <nvtx3/nvToolsExt.h>

#include <array>
#include <filesystem>
#include <mutex>
#include <tuple>

#include "sim/core/base/error.h"
#ifdef SHARDWRIGHT_HAS_CUDNN
#include <cudnn.h>
#include <nvrtc.h>
#endif
#ifdef SHARDWRIGHT_HAS_CUPTI
#include <cupti.h>
#endif
#ifdef SHARDWRIGHT_HAS_NCCL
#include <nccl.h>
#endif

namespace shardwright::exec::libraries {
namespace {

/// Result and parameters of a function.
template <class Function>
struct Signature;
template <class R, class... P>
struct Signature<R(P...)> {
  using Result = R;
  template <std::size_t i>
  using Parameter = std::tuple_element_t<i, std::tuple<P...>>;
};

class NvtxMarker final : public RangeMarker {
 public:
  void begin(const std::string& name) override { nvtxRangePushA(name.c_str()); }
  void end() override { nvtxRangePop(); }
};

class LoadedLibrary {
 public:
  /// `title` for people; `file` is looked for by the loader's rules, then in `folder`, where it was
  /// at the build. `parts` beside it must be loadable, too: for a library that ends the process
  /// where one is not, or does not say that it lacks one.
  constexpr LoadedLibrary(const char* title, const char* file, const char* folder,
                          std::array<const char*, 2> parts = {})
      : title_(title), file_(file), folder_(folder), parts_(parts) {}

  /// The library's function of that name; `Function` is its type.
  template <class Function>
  Function* function(const char* name) {
    return reinterpret_cast<Function*>(symbol(name));
  }

 private:
  void* symbol(const char* name);

  const char* title_;
  const char* file_;
  const char* folder_;
  std::array<const char*, 2> parts_;
  std::once_flag once_;
  void* handle_ = nullptr;  // never unloaded, like any that is linked
  std::string problem_;
};

void* LoadedLibrary::symbol(const char* name) {
  std::call_once(once_, [this] {
    handle_ = dlopen(file_, RTLD_LAZY | RTLD_LOCAL);
    if (handle_ == nullptr) {
      problem_ = dlerror();
      handle_ = dlopen(fmt::format("{}/{}", folder_, file_).c_str(), RTLD_LAZY | RTLD_LOCAL);
    }
    for (const char* const part : parts_) {
      if (handle_ == nullptr || part == nullptr) return;
      problem_ = why_without(handle_, part);
      if (!problem_.empty()) handle_ = nullptr;
    }
  });
  if (handle_ == nullptr) {
    throw Error(fmt::format("{} cannot be loaded: {}; expected it in a folder of the system or of "
                            "LD_LIBRARY_PATH.",
                            title_, problem_),
                ExitCode::kMissingDevice);
  }
  void* const found = dlsym(handle_, name);
  if (found == nullptr) {
    throw Error(
        fmt::format("{} has no function {}, expected a newer release of {}.", file_, name, title_),
        ExitCode::kMissingDevice);
  }
  return found;
}

}  // namespace

std::string why_without(void* library, const std::string& part) {
  const link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return {};
  const std::filesystem::path beside = std::filesystem::path(map->l_name).replace_filename(part);
  if (dlopen(beside.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr) return {};
  std::string why = dlerror();
  return dlopen(part.c_str(), RTLD_LAZY | RTLD_LOCAL) != nullptr ? std::string() : why;
}

std::unique_ptr<RangeMarker> make_nvtx_marker() {
  return std::make_unique<NvtxMarker>();
}

// A function is defined here as its library's header declares it: `name` of `n` parameters, which
// are called a0, a1, ... and have the types Pn.
#define P(f, i) Signature<decltype(::f)>::Parameter<i> a##i
#define P0(f)
#define P1(f) P(f, 0)
#define P2(f) P1(f), P(f, 1)
#define P3(f) P2(f), P(f, 2)
#define P4(f) P3(f), P(f, 3)
#define P5(f) P4(f), P(f, 4)
#define P6(f) P5(f), P(f, 5)
#define P7(f) P6(f), P(f, 6)
#define P8(f) P7(f), P(f, 7)
#define P10(f) P8(f), P(f, 8), P(f, 9)
#define P16(f) P10(f), P(f, 10), P(f, 11), P(f, 12), P(f, 13), P(f, 14), P(f, 15)
#define A0
#define A1 a0
#define A2 A1, a1
#define A3 A2, a2
#define A4 A3, a3
#define A5 A4, a4
#define A6 A5, a5
#define A7 A6, a6
#define A8 A7, a7
#define A10 A8, a8, a9
#define A16 A10, a10, a11, a12, a13, a14, a15
#define LOADED(library, name, n)                                                         \
  Signature<decltype(::name)>::Result name(P##n(name)) {                                 \
    static decltype(::name)* const function = library.function<decltype(::name)>(#name); \
    return function(A##n);                                                               \
  }

extern "C" {

static LoadedLibrary cublas_lt("cuBLASLt", SHARDWRIGHT_CUBLAS_LT, SHARDWRIGHT_CUBLAS_LT_FOLDER);
LOADED(cublas_lt, cublasLtGetVersion, 0)
LOADED(cublas_lt, cublasLtGetStatusName, 1)
LOADED(cublas_lt, cublasLtGetStatusString, 1)
LOADED(cublas_lt, cublasLtCreate, 1)
LOADED(cublas_lt, cublasLtDestroy, 1)
LOADED(cublas_lt, cublasLtMatmulDescCreate, 3)
LOADED(cublas_lt, cublasLtMatmulDescDestroy, 1)
LOADED(cublas_lt, cublasLtMatmulDescSetAttribute, 4)
LOADED(cublas_lt, cublasLtMatrixLayoutCreate, 5)
LOADED(cublas_lt, cublasLtMatrixLayoutDestroy, 1)
LOADED(cublas_lt, cublasLtMatmulPreferenceCreate, 1)
LOADED(cublas_lt, cublasLtMatmulPreferenceDestroy, 1)
LOADED(cublas_lt, cublasLtMatmulPreferenceSetAttribute, 4)
LOADED(cublas_lt, cublasLtMatmulAlgoGetHeuristic, 10)
LOADED(cublas_lt, cublasLtMatmul, 16)

#ifdef SHARDWRIGHT_HAS_CUDNN
static LoadedLibrary cudnn("cuDNN", SHARDWRIGHT_CUDNN_FILE, SHARDWRIGHT_CUDNN_FOLDER,
                           {"libcudnn_graph.so.9", "libcudnn_engines_runtime_compiled.so.9"});
LOADED(cudnn, cudnnBackendCreateDescriptor, 2)
LOADED(cudnn, cudnnBackendDestroyDescriptor, 1)
LOADED(cudnn, cudnnBackendExecute, 3)
LOADED(cudnn, cudnnBackendFinalize, 1)
LOADED(cudnn, cudnnBackendGetAttribute, 6)
LOADED(cudnn, cudnnBackendSetAttribute, 5)
LOADED(cudnn, cudnnCreate, 1)
LOADED(cudnn, cudnnCreateFilterDescriptor, 1)
LOADED(cudnn, cudnnDestroy, 1)
LOADED(cudnn, cudnnDestroyFilterDescriptor, 1)
LOADED(cudnn, cudnnGetCudartVersion, 0)
LOADED(cudnn, cudnnGetErrorString, 1)
#if CUDNN_VERSION >= 92300
LOADED(cudnn, cudnnGetExecutionPlanWorkspaceSize, 4)
#endif
LOADED(cudnn, cudnnGetLastErrorString, 2)
LOADED(cudnn, cudnnGetStream, 2)
LOADED(cudnn, cudnnGetVersion, 0)
LOADED(cudnn, cudnnReorderFilterAndBias, 8)
LOADED(cudnn, cudnnSetFilterNdDescriptor, 5)
LOADED(cudnn, cudnnSetStream, 2)

// cuDNN loads it by the same name. Of this and of filters cudnn-frontend names functions that
// attention does not call.
static LoadedLibrary nvrtc("NVRTC", SHARDWRIGHT_NVRTC_FILE, SHARDWRIGHT_NVRTC_FOLDER);
LOADED(nvrtc, nvrtcCompileProgram, 3)
LOADED(nvrtc, nvrtcCreateProgram, 6)
LOADED(nvrtc, nvrtcDestroyProgram, 1)
LOADED(nvrtc, nvrtcGetCUBIN, 2)
LOADED(nvrtc, nvrtcGetCUBINSize, 2)
LOADED(nvrtc, nvrtcGetProgramLog, 2)
LOADED(nvrtc, nvrtcGetProgramLogSize, 2)
LOADED(nvrtc, nvrtcVersion, 2)
#endif

#ifdef SHARDWRIGHT_HAS_CUPTI
static LoadedLibrary cupti("CUPTI", SHARDWRIGHT_CUPTI_FILE, SHARDWRIGHT_CUPTI_FOLDER);
LOADED(cupti, cuptiActivityDisable, 1)
LOADED(cupti, cuptiActivityEnable, 1)
LOADED(cupti, cuptiActivityFlushAll, 1)
LOADED(cupti, cuptiActivityGetNextRecord, 3)
LOADED(cupti, cuptiActivityGetNumDroppedRecords, 3)
LOADED(cupti, cuptiActivityPopExternalCorrelationId, 2)
LOADED(cupti, cuptiActivityPushExternalCorrelationId, 2)
LOADED(cupti, cuptiActivityRegisterCallbacks, 2)
LOADED(cupti, cuptiGetCallbackName, 3)
LOADED(cupti, cuptiGetDeviceId, 2)
LOADED(cupti, cuptiGetErrorMessage, 2)
LOADED(cupti, cuptiGetResultString, 2)
LOADED(cupti, cuptiGetStreamIdEx, 4)
LOADED(cupti, cuptiGetTimestamp, 1)
LOADED(cupti, cuptiGetVersion, 1)
LOADED(cupti, cuptiSubscribe, 3)
LOADED(cupti, cuptiUnsubscribe, 1)
#endif

#ifdef SHARDWRIGHT_HAS_NCCL
static LoadedLibrary nccl("NCCL", SHARDWRIGHT_NCCL_FILE, SHARDWRIGHT_NCCL_FOLDER);
LOADED(nccl, ncclAllGather, 6)
LOADED(nccl, ncclAllReduce, 7)
LOADED(nccl, ncclBroadcast, 7)
LOADED(nccl, ncclCommAbort, 1)
LOADED(nccl, ncclCommCount, 2)
LOADED(nccl, ncclCommDeregister, 2)
LOADED(nccl, ncclCommDestroy, 1)
LOADED(nccl, ncclCommFinalize, 1)
LOADED(nccl, ncclCommGetAsyncError, 2)
LOADED(nccl, ncclCommInitRankConfig, 5)
LOADED(nccl, ncclCommRegister, 4)
LOADED(nccl, ncclCommSplit, 5)
LOADED(nccl, ncclCommUserRank, 2)
LOADED(nccl, ncclMemAlloc, 2)
LOADED(nccl, ncclMemFree, 1)
LOADED(nccl, ncclGetErrorString, 1)
LOADED(nccl, ncclGetLastError, 1)
LOADED(nccl, ncclGetUniqueId, 1)
LOADED(nccl, ncclGetVersion, 1)
LOADED(nccl, ncclGroupEnd, 0)
LOADED(nccl, ncclGroupStart, 0)
LOADED(nccl, ncclRecv, 6)
LOADED(nccl, ncclReduce, 8)
LOADED(nccl, ncclReduceScatter, 7)
LOADED(nccl, ncclSend, 6)
#endif

}  // extern "C"

}  // namespace shardwright::exec::libraries
