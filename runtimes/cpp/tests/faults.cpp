#include "ort_faults.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

namespace {

using faults::fails;
using faults::Kind;

struct Plan {
    Kind kind = Kind::memory;
    long left = 0;  // operations until the first fault; 0: no plan
    bool on = false, failed = false;
    int inside = 0;  // calls of ONNX Runtime that this thread is in
};

thread_local Plan planned;

}  // namespace

faults::Inside::Inside() { planned.inside++; }
faults::Inside::~Inside() { planned.inside--; }

bool faults::fails(Kind kind) {
    if (planned.left == 0 || planned.inside || planned.kind != kind) return false;
    if (planned.left > 1) return planned.left--, false;
    planned.left = planned.on ? 1 : 0;
    return planned.failed = true;
}

namespace {

bool fails_with(int code) {
    if (!faults::fails(Kind::files)) return false;
    errno = code;
    return true;
}

}  // namespace

void faults::plan(Kind kind, long first, bool on) { planned = {kind, first, on, false, 0}; }

bool faults::done() {
    planned.left = 0;
    return planned.failed;
}

// ---- Allocations: libt2r has no others than these ----

namespace {

void *allocated(std::size_t size) {
    void *const memory = fails(Kind::memory) ? nullptr : std::malloc(size ? size : 1);
    return memory ? memory : throw std::bad_alloc();
}

void *allocated(std::size_t size, std::align_val_t edge) {
    void *memory = nullptr;
    if (fails(Kind::memory) || posix_memalign(&memory, static_cast<std::size_t>(edge), size)) throw std::bad_alloc();
    return memory;
}

}  // namespace

void *operator new(std::size_t size) { return allocated(size); }
void *operator new[](std::size_t size) { return allocated(size); }
void *operator new(std::size_t size, std::align_val_t edge) { return allocated(size, edge); }
void *operator new[](std::size_t size, std::align_val_t edge) { return allocated(size, edge); }
void *operator new(std::size_t size, const std::nothrow_t &) noexcept { return fails(Kind::memory) ? nullptr : std::malloc(size ? size : 1); }
void *operator new[](std::size_t size, const std::nothrow_t &none) noexcept { return operator new(size, none); }
void operator delete(void *memory) noexcept { std::free(memory); }
void operator delete[](void *memory) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void *memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void *memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void *memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void *memory, const std::nothrow_t &) noexcept { std::free(memory); }
void operator delete[](void *memory, const std::nothrow_t &) noexcept { std::free(memory); }

// ---- Files: the linker gives libt2r these for fopen, fseeko, fileno and fsync; the C++ library calls the others ----

namespace {

struct Opened {
    std::FILE *file;
    int number;
    bool writes;
};

std::array<Opened, 8> opened;

Opened &of(void *cookie) { return *static_cast<Opened *>(cookie); }

ssize_t read_part(void *cookie, char *to, std::size_t size) { return fails_with(EIO) ? -1 : ::read(of(cookie).number, to, size); }

ssize_t write_part(void *cookie, const char *from, std::size_t size) {
    return fails_with(ENOSPC) ? 0 : std::max<ssize_t>(::write(of(cookie).number, from, size), 0);
}

int seek(void *cookie, off64_t *place, int from) {
    *place = lseek64(of(cookie).number, *place, from);
    return *place < 0 ? -1 : 0;
}

int close(void *cookie) {
    of(cookie).file = nullptr;
    const int result = ::close(of(cookie).number);
    return of(cookie).writes && fails_with(ENOSPC) ? -1 : result;  // a file that was read is closed in any case
}

template <class F> F *next(F *, const char *name) { return reinterpret_cast<F *>(dlsym(RTLD_NEXT, name)); }

}  // namespace

extern "C" {

std::FILE *__wrap_fopen(const char *path, const char *mode) {
    const bool writes = mode[0] == 'w';
    const int flags = writes ? O_WRONLY | O_CREAT | (std::strchr(mode, 'x') ? O_EXCL : O_TRUNC) : O_RDONLY;
    if (fails_with(writes ? ENOSPC : EIO)) return nullptr;
    const int number = ::open(path, flags | O_CLOEXEC, 0666);
    if (number < 0) return nullptr;
    for (Opened &each : opened) {
        if (each.file) continue;
        each.number = number;
        each.writes = writes;
        return each.file = fopencookie(&each, writes ? "w" : "r", {read_part, write_part, seek, close});
    }
    std::abort();
}

int __real_fileno(std::FILE *file);
int __wrap_fileno(std::FILE *file) {
    for (const Opened &each : opened)
        if (each.file == file) return each.number;
    return __real_fileno(file);  // of clang's counters
}

// It may read ahead. If that fails, the C library finds another way, and the next read fails.
int __real_fseeko(std::FILE *file, off_t place, int from);
int __wrap_fseeko(std::FILE *file, off_t place, int from) {
    const faults::Inside inside;
    return __real_fseeko(file, place, from);
}

int __real_fsync(int number);
int __wrap_fsync(int number) { return fails_with(EIO) ? -1 : __real_fsync(number); }

int stat(const char *path, struct stat *found) noexcept { return fails_with(EIO) ? -1 : next(stat, "stat")(path, found); }
int lstat(const char *path, struct stat *found) noexcept { return fails_with(EIO) ? -1 : next(lstat, "lstat")(path, found); }
int rename(const char *from, const char *to) noexcept { return fails_with(ENOSPC) ? -1 : next(rename, "rename")(from, to); }
int fchmodat(int at, const char *path, mode_t mode, int flags) noexcept {
    return fails_with(EIO) ? -1 : next(fchmodat, "fchmodat")(at, path, mode, flags);
}

}  // extern "C"

// ---- ONNX Runtime ----

extern "C" {

const OrtApiBase *__real_OrtGetApiBase() noexcept;

const OrtApiBase *__wrap_OrtGetApiBase() noexcept {
    static const auto api = [](uint32_t version) noexcept -> const OrtApi * {
        using A = OrtApi;
        const OrtApi *const table = faults::table_of<&A::SetLanguageProjection, &A::AddRunConfigEntry, &A::AddSessionConfigEntry, &A::AddExternalInitializersFromFilesInMemory, &A::AllocatorFree,
                                &A::BindInput, &A::BindOutput, &A::CastTypeInfoToTensorInfo, &A::CreateCpuMemoryInfo,
                                &A::CreateEnvWithCustomLogger, &A::CreateEnvWithCustomLoggerAndGlobalThreadPools, &A::CreateIoBinding,
                                &A::CreateRunOptions, &A::CreateSession, &A::CreateSessionFromArray, &A::CreateSessionOptions, &A::CreateStatus,
                                &A::CreateTensorWithDataAsOrtValue, &A::CreateThreadingOptions, &A::DisablePerSessionThreads,
                                &A::GetAllocatorWithDefaultOptions, &A::GetDimensions, &A::GetDimensionsCount, &A::GetErrorCode,
                                &A::GetErrorMessage, &A::GetSymbolicDimensions, &A::GetTensorElementType, &A::GetTensorMutableData,
                                &A::GetTensorShapeElementCount, &A::GetTensorTypeAndShape, &A::GetOnnxTypeFromTypeInfo, &A::HasSessionConfigEntry,
                                &A::ReleaseEnv, &A::ReleaseIoBinding, &A::ReleaseMemoryInfo, &A::ReleaseRunOptions, &A::ReleaseSession,
                                &A::ReleaseSessionOptions, &A::ReleaseStatus, &A::ReleaseTensorTypeAndShapeInfo, &A::ReleaseThreadingOptions,
                                &A::ReleaseTypeInfo, &A::ReleaseValue, &A::Run, &A::RunOptionsSetTerminate, &A::RunOptionsUnsetTerminate,
                                &A::RunWithBinding, &A::SessionGetInputCount, &A::SessionGetInputName, &A::SessionGetInputTypeInfo,
                                &A::SessionGetOutputCount, &A::SessionGetOutputName, &A::SessionGetOutputTypeInfo, &A::SetGlobalInterOpNumThreads,
                                &A::SetGlobalIntraOpNumThreads, &A::SetIntraOpNumThreads, &A::SetSessionLogSeverityLevel>(
            __real_OrtGetApiBase()->GetApi(version));
        // plugins.cpp
        faults::wrap_at<297, const char *, const void *, const char *>();
        faults::wrap_at<301, OrtStatus *, OrtEnv *, const char *, const ORTCHAR_T *>();
        faults::wrap_at<302, OrtStatus *, OrtEnv *, const char *>();
        faults::wrap_at<303, OrtStatus *, const OrtEnv *, const void *, std::size_t *>();
        faults::wrap_at<304, OrtStatus *, OrtSessionOptions *, OrtEnv *, const void *, std::size_t, const void *, const void *, std::size_t>();
        faults::wrap_at<312, const char *, const void *>();
        faults::wrap_at<314, const void *, const void *>();
        return table;
    };
    static const OrtApiBase base = {api, __real_OrtGetApiBase()->GetVersionString};
    return &base;
}

}  // extern "C"
