// Planned faults: the n-th allocation, file operation or call of ONNX Runtime by our code fails. What ONNX Runtime itself
// allocates, reads and writes never does.
#pragma once

namespace faults {

enum class Kind { memory, files, onnxruntime };

// From now on, operation number `first` of the kind fails, counted from 1; with `on`, all after it do too.
void plan(Kind kind, long first, bool on);
// End the plan. Returns whether an operation has failed.
bool done();

// Whether this operation fails.
bool fails(Kind kind);

// In ONNX Runtime, where nothing fails.
struct Inside {
    Inside();
    ~Inside();
};

}  // namespace faults
