// SPDX-License-Identifier: Apache-2.0
// A library of CUDA that the program does not link: it is loaded by the first call of it.
//
// A program that links them does not start where one is missing, not even to say which; and
// cuBLASLt alone has 390 thousand addresses that the loader must put right, 60 ms of every start.
// So the program brings the functions that it calls, each of which passes its arguments on to the
// library's own of that name (cublas_lt.cc, cudnn.cc, cupti.cc, nccl.cc). They throw Error
// (ExitCode::kMissingDevice) where there is no library.
#pragma once

#include <mutex>
#include <string>

namespace shardwright::exec::libraries {

/// Why a part of a library, of that name beside it or where the loader looks, cannot be loaded;
/// empty where it is. It stays loaded.
std::string why_without(void* library, const std::string& part);

class LoadedLibrary {
 public:
  /// `title` for people; `file` is looked for by the loader's rules, then in `folder`, where it was
  /// at the build. `part` beside it must be loadable, too: for a library that ends the process
  /// where it is not.
  constexpr LoadedLibrary(const char* title, const char* file, const char* folder,
                          const char* part = nullptr)
      : title_(title), file_(file), folder_(folder), part_(part) {}

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
  const char* part_;
  std::once_flag once_;
  void* handle_ = nullptr;  // never unloaded, like any that is linked
  std::string problem_;
};

}  // namespace shardwright::exec::libraries

// The function of `library` that is being defined, with all its arguments. A macro, because its
// name is needed as a word and as a type.
#define SHARDWRIGHT_PASS_ON(library, name, ...)                                        \
  static decltype(::name)* const function = library.function<decltype(::name)>(#name); \
  return function(__VA_ARGS__)
