// Planned faults for the provider: the linker gives it these operators instead of the C++ library's.
#include "ort_faults.hpp"

#include <onnxruntime_cxx_api.h>

#include <atomic>
#include <cstdlib>
#include <new>

namespace {

using faults::Kind;

std::atomic<Kind> planned{Kind::memory};
std::atomic<long> left{0}, live{0};  // operations until the fault, or 0; allocations that are not freed
std::atomic<bool> failed{false};

void *made(void *memory) {
    if (!memory) throw std::bad_alloc();
    live++;
    return memory;
}

void *allocated(std::size_t size) { return made(faults::fails(Kind::memory) ? nullptr : std::malloc(size ? size : 1)); }

void freed(void *memory) {
    if (memory) live--;
    std::free(memory);
}

}  // namespace

faults::Inside::Inside() {}
faults::Inside::~Inside() {}

bool faults::fails(Kind kind) {
    if (planned != kind) return false;
    if (left == 0 || --left > 0) return false;
    return failed = true;
}

extern "C" {

#define T2R_EXPORTED __attribute__((visibility("default")))

T2R_EXPORTED void t2r_faults_plan(int kind, long first) {
    using A = OrtApi;
    if (!faults::real)
        Ort::InitApi(faults::table_of<&A::Graph_GetNumInputs, &A::Graph_GetInputs, &A::Graph_GetNumOutputs, &A::Graph_GetOutputs,
                                      &A::Graph_GetNumInitializers, &A::Graph_GetInitializers, &A::Graph_GetNumNodes,
                                      &A::Graph_GetNodes, &A::Graph_GetParentNode, &A::Node_GetName, &A::Node_GetOperatorType,
                                      &A::Node_GetDomain, &A::Node_GetSinceVersion, &A::Node_GetNumInputs, &A::Node_GetInputs,
                                      &A::Node_GetNumOutputs, &A::Node_GetOutputs, &A::Node_GetNumAttributes, &A::Node_GetAttributes,
                                      &A::Node_GetNumSubgraphs, &A::Node_GetSubgraphs, &A::OpAttr_GetType, &A::OpAttr_GetName,
                                      &A::ReadOpAttr, &A::GetValueInfoName, &A::GetValueInfoTypeInfo,
                                      &A::ValueInfo_GetInitializerValue, &A::ValueInfo_IsConstantInitializer,
                                      &A::KernelContext_GetInput, &A::KernelContext_GetOutput, &A::KernelContext_ParallelFor,
                                      &A::GetTensorTypeAndShape, &A::GetTensorElementType, &A::GetDimensions, &A::GetDimensionsCount,
                                      &A::GetTensorShapeElementCount, &A::GetTensorMutableData, &A::GetTensorData,
                                      &A::GetOnnxTypeFromTypeInfo, &A::CastTypeInfoToTensorInfo, &A::ReleaseTypeInfo,
                                      &A::ReleaseTensorTypeAndShapeInfo, &A::CreateEnv, &A::CreateSessionOptions,
                                      &A::SetIntraOpNumThreads, &A::SetSessionGraphOptimizationLevel, &A::SetSessionLogSeverityLevel,
                                      &A::CreateSessionFromArray, &A::CreateCpuMemoryInfo, &A::CreateTensorWithDataAsOrtValue,
                                      &A::ReleaseMemoryInfo, &A::ReleaseSession, &A::ReleaseSessionOptions, &A::ReleaseEnv,
                                      &A::ReleaseStatus, &A::ReleaseValue, &A::Run, &A::GetRunConfigEntry,
                                      &A::SetLanguageProjection, &A::GetErrorCode, &A::GetErrorMessage,
                                      &A::HasSessionConfigEntry, &A::GetSessionConfigEntry, &A::Logger_LogMessage,
                                      &A::HardwareDevice_Type, &A::GetEpApi, &A::CreateStatus>(&Ort::GetApi()));
    planned = static_cast<Kind>(kind);
    left = first;
    failed = false;
}

T2R_EXPORTED bool t2r_faults_done() {
    left = 0;
    return failed;
}

T2R_EXPORTED void t2r_faults_leak() {
    static int *volatile lost;
    lost = static_cast<int *>(made(std::malloc(sizeof(int))));
}
T2R_EXPORTED long t2r_faults_live() { return live; }

void *__wrap__Znwm(std::size_t size) { return allocated(size); }
void *__wrap__Znam(std::size_t size) { return allocated(size); }
void *__wrap__ZnwmSt11align_val_t(std::size_t size, std::size_t edge) {
    return made(faults::fails(Kind::memory) ? nullptr : std::aligned_alloc(edge, (size + edge - 1) / edge * edge));
}
void *__wrap__ZnwmRKSt9nothrow_t(std::size_t size, const std::nothrow_t &) noexcept {
    void *const memory = faults::fails(Kind::memory) ? nullptr : std::malloc(size ? size : 1);
    live += memory != nullptr;
    return memory;
}
void *__wrap__ZnamRKSt9nothrow_t(std::size_t size, const std::nothrow_t &none) noexcept { return __wrap__ZnwmRKSt9nothrow_t(size, none); }
void __wrap__ZdlPv(void *memory) { freed(memory); }
void __wrap__ZdaPv(void *memory) { freed(memory); }
void __wrap__ZdlPvm(void *memory, std::size_t) { freed(memory); }
void __wrap__ZdaPvm(void *memory, std::size_t) { freed(memory); }
void __wrap__ZdlPvSt11align_val_t(void *memory, std::size_t) { freed(memory); }
void __wrap__ZdlPvmSt11align_val_t(void *memory, std::size_t, std::size_t) { freed(memory); }
void __wrap__ZdlPvRKSt9nothrow_t(void *memory, const std::nothrow_t &) { freed(memory); }

}  // extern "C"
