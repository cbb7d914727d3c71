// SPDX-License-Identifier: Apache-2.0
// NCCL by its first call.
#include <nccl.h>

#include "exec/libraries/loaded_library.h"

namespace {

shardwright::exec::libraries::LoadedLibrary nccl_library("NCCL", SHARDWRIGHT_NCCL_FILE,
                                                         SHARDWRIGHT_NCCL_FOLDER);

}  // namespace

extern "C" {

ncclResult_t ncclAllGather(const void* sendbuff, void* recvbuff, size_t sendcount,
                           ncclDataType_t datatype, ncclComm_t comm, cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclAllGather, sendbuff, recvbuff, sendcount, datatype, comm,
                      stream);
}
ncclResult_t ncclAllReduce(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                           cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclAllReduce, sendbuff, recvbuff, count, datatype, op, comm,
                      stream);
}
ncclResult_t ncclBroadcast(const void* sendbuff, void* recvbuff, size_t count,
                           ncclDataType_t datatype, int root, ncclComm_t comm,
                           cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclBroadcast, sendbuff, recvbuff, count, datatype, root, comm,
                      stream);
}
ncclResult_t ncclCommAbort(ncclComm_t comm) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommAbort, comm);
}
ncclResult_t ncclCommCount(const ncclComm_t comm, int* count) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommCount, comm, count);
}
ncclResult_t ncclCommDeregister(const ncclComm_t comm, void* handle) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommDeregister, comm, handle);
}
ncclResult_t ncclCommDestroy(ncclComm_t comm) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommDestroy, comm);
}
ncclResult_t ncclCommFinalize(ncclComm_t comm) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommFinalize, comm);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t* asyncError) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommGetAsyncError, comm, asyncError);
}
ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int nranks, ncclUniqueId commId, int rank,
                                    ncclConfig_t* config) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommInitRankConfig, comm, nranks, commId, rank, config);
}
ncclResult_t ncclCommRegister(const ncclComm_t comm, void* buff, size_t size, void** handle) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommRegister, comm, buff, size, handle);
}
ncclResult_t ncclCommSplit(ncclComm_t comm, int color, int key, ncclComm_t* newcomm,
                           ncclConfig_t* config) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommSplit, comm, color, key, newcomm, config);
}
ncclResult_t ncclCommUserRank(const ncclComm_t comm, int* rank) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclCommUserRank, comm, rank);
}
ncclResult_t ncclMemAlloc(void** ptr, size_t size) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclMemAlloc, ptr, size);
}
ncclResult_t ncclMemFree(void* ptr) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclMemFree, ptr);
}
const char* ncclGetErrorString(ncclResult_t result) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclGetErrorString, result);
}
const char* ncclGetLastError(ncclComm_t comm) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclGetLastError, comm);
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* uniqueId) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclGetUniqueId, uniqueId);
}
ncclResult_t ncclGetVersion(int* version) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclGetVersion, version);
}
ncclResult_t ncclGroupEnd() {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclGroupEnd);
}
ncclResult_t ncclGroupStart() {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclGroupStart);
}
ncclResult_t ncclRecv(void* recvbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclRecv, recvbuff, count, datatype, peer, comm, stream);
}
ncclResult_t ncclReduce(const void* sendbuff, void* recvbuff, size_t count, ncclDataType_t datatype,
                        ncclRedOp_t op, int root, ncclComm_t comm, cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclReduce, sendbuff, recvbuff, count, datatype, op, root, comm,
                      stream);
}
ncclResult_t ncclReduceScatter(const void* sendbuff, void* recvbuff, size_t recvcount,
                               ncclDataType_t datatype, ncclRedOp_t op, ncclComm_t comm,
                               cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclReduceScatter, sendbuff, recvbuff, recvcount, datatype, op,
                      comm, stream);
}
ncclResult_t ncclSend(const void* sendbuff, size_t count, ncclDataType_t datatype, int peer,
                      ncclComm_t comm, cudaStream_t stream) {
  SHARDWRIGHT_PASS_ON(nccl_library, ncclSend, sendbuff, count, datatype, peer, comm, stream);
}

}  // extern "C"
