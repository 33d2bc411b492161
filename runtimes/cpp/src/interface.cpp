#include "interface.hpp"

#include <map>
#include <string>

#include "error.hpp"

namespace t2r {

namespace {

constexpr std::int64_t any_size = -9;  // a symbolic dimension, in a form or in a graph

struct Form {
    ONNXTensorElementDataType dtype;
    Shape shape;
};
using Forms = std::map<std::string, Form>;

constexpr auto f32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT,
               i64 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, i32 = ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32;

// A state's form in a graph.
Form form_of(const StateSpec &spec, std::int64_t batch) {
    Form form{type_of(spec.dtype), spec.shape};
    for (std::int64_t &dim : form.shape) dim = dim > 0 ? dim : dim == dim_batch && batch ? batch : any_size;
    return form;
}

void step_forms(const Signature &signature, Forms &inputs, Forms &outputs) {
    const std::int64_t batch = signature.batch ? signature.batch : any_size;
    Shape read = signature.role == "step" ? Shape{batch} : Shape{batch, any_size};
    if (signature.input_size) read.push_back(signature.input_size);
    inputs[signature.input_size ? "inputs_embeds" : "input_ids"] = {signature.input_size ? f32 : i64, read};
    const bool checks = signature.role == "draft_check";
    if (checks) inputs["keep"] = {i64, {batch}};
    const auto rows = [&](std::int64_t columns) { return checks ? Shape{batch, any_size, columns} : Shape{batch, columns}; };
    outputs["logits"] = {f32, rows(signature.vocab_size)};
    if (signature.top_k) {
        outputs["top_logits"] = {f32, rows(signature.top_k)};
        outputs["top_tokens"] = {i64, rows(signature.top_k)};
        if (signature.source) outputs["log_sum"] = {f32, {batch}};
    }
    if (signature.hidden_size) outputs["hidden"] = {f32, rows(signature.hidden_size)};  // not used here
    for (const StateSpec &spec : signature.states) {
        inputs[spec.past] = form_of(spec, signature.batch);
        if (!spec.constant) outputs[spec.present] = form_of(spec, signature.batch);
    }
}

void encoder_forms(const Signature &signature, Forms &inputs, Forms &outputs) {
    const std::int64_t batch = signature.batch ? signature.batch : any_size;
    const std::int64_t length = signature.source->source_length ? signature.source->source_length : any_size;
    inputs["source_ids"] = {i64, {batch, length}};
    inputs["source_lengths"] = {i64, {batch}};
    for (const StateSpec &spec : signature.states)
        if (spec.constant) outputs[spec.name] = form_of(spec, signature.batch);
    for (const std::string &name : signature.source->start_states)
        for (const StateSpec &spec : signature.states)
            if (spec.name == name && !spec.constant) outputs[spec.present] = form_of(spec, signature.batch);
}

Form form_of(const Ort::TypeInfo &info) {
    if (info.GetONNXType() != ONNX_TYPE_TENSOR) return {ONNX_TENSOR_ELEMENT_DATA_TYPE_UNDEFINED, {}};
    const auto tensor = info.GetTensorTypeAndShapeInfo();
    Form form{tensor.GetElementType(), tensor.GetShape()};
    for (std::int64_t &dim : form.shape) dim = dim < 0 ? any_size : dim;
    return form;
}

std::string show(const Form &form) {
    std::string text = "type " + number(form.dtype) + " (";
    for (std::size_t i = 0; i < form.shape.size(); i++)
        text += (i ? ", " : "") + (form.shape[i] == any_size ? "?" : number(form.shape[i]));
    return text + ")";
}

void list_names(const char *label, const Forms &these, const Forms &others, std::string &problems) {
    std::string names;
    for (const auto &[name, form] : these)
        if (!others.count(name)) names += (names.empty() ? "" : ", ") + name;
    if (!names.empty()) problems += (problems.empty() ? "" : "; ") + std::string(label) + " " + names;
}

void compare(const Forms &wanted, const Forms &found, std::string &problems) {
    for (const auto &[name, form] : wanted) {
        const Form &other = found.at(name);
        if (form.dtype != other.dtype || form.shape != other.shape)
            problems += (problems.empty() ? "" : "; ") + name + " " + show(other) + " for " + show(form);
    }
}

}  // namespace

ONNXTensorElementDataType type_of(Dtype dtype) {
    static const ONNXTensorElementDataType types[] = {f32, ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, i32, i64};
    return types[static_cast<int>(dtype)];
}

void check_interface(const Signature &signature, const Ort::Session &session) {
    Forms wanted_in, wanted_out, inputs, outputs;
    if (signature.role == "encoder") encoder_forms(signature, wanted_in, wanted_out);
    else step_forms(signature, wanted_in, wanted_out);
    Ort::AllocatorWithDefaultOptions allocator;
    for (std::size_t i = 0; i < session.GetInputCount(); i++)
        inputs[session.GetInputNameAllocated(i, allocator).get()] = form_of(session.GetInputTypeInfo(i));
    for (std::size_t i = 0; i < session.GetOutputCount(); i++)
        outputs[session.GetOutputNameAllocated(i, allocator).get()] = form_of(session.GetOutputTypeInfo(i));
    std::string problems;
    list_names("missing inputs", wanted_in, inputs, problems);
    list_names("unexpected inputs", inputs, wanted_in, problems);
    list_names("missing outputs", wanted_out, outputs, problems);
    list_names("unexpected outputs", outputs, wanted_out, problems);
    if (problems.empty()) {
        compare(wanted_in, inputs, problems);
        compare(wanted_out, outputs, problems);
    }
    if (!problems.empty())
        fail(T2R_INTERFACE, "the inputs and outputs that the graph's metadata lists", printable(problems),
             "export the model again");
}

}  // namespace t2r
