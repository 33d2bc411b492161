#include "fuse.hpp"

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

namespace t2r::provider {

namespace {

class Fuser {
public:
    explicit Fuser(Graph graph) : graph(std::move(graph)), is_part(this->graph.nodes.size(), false) {
        for (std::size_t i = 0; i < this->graph.nodes.size(); i++) {
            for (const std::string &output : this->graph.nodes[i].outputs)
                if (!output.empty()) makers[output] = i;
            for (const std::string &input : this->graph.nodes[i].inputs) uses[input]++;
        }
        for (const std::string &output : this->graph.outputs) uses[output]++, results.insert(output);
        for (const std::string &input : this->graph.inputs) given.insert(input);
    }

    Graph run() {
        read_halves();
        for (std::size_t i = 0; i < graph.nodes.size(); i++)
            while (replace_at(i)) {
            }
        Graph result = std::move(graph);
        std::vector<Node> left;
        for (std::size_t i = 0; i < result.nodes.size(); i++)
            if (!is_part[i]) left.push_back(std::move(result.nodes[i]));
        result.nodes = std::move(left);
        return result;
    }

private:
    using Match = std::vector<std::size_t>;  // indices of the nodes to fuse
    using Found = std::optional<Node>;

    // Products read scales in float16 as they are in the file.
    void read_halves() {
        for (Node &node : graph.nodes) {
            const auto found = node.op == "MatMulNBits" && node.inputs.size() > 2 ? makers.find(node.inputs[2]) : makers.end();
            if (found == makers.end()) continue;
            const Node &cast = graph.nodes[found->second];
            if (cast.op != "Cast" || cast.integer("to", 0) != static_cast<int>(Type::float32) || makers.count(cast.inputs[0])) continue;
            is_part[found->second] = --uses[node.inputs[2]] == 0;
            uses[cast.inputs[0]]++;
            node.inputs[2] = cast.inputs[0];
        }
    }

    // Whether a pattern ends at the node, which is then replaced.
    bool replace_at(std::size_t i) {
        for (const auto find : {&Fuser::find_norm, &Fuser::find_rotation, &Fuser::find_update, &Fuser::find_sum, &Fuser::find_gated_half,
                                &Fuser::find_attention, &Fuser::find_transposed, &Fuser::find_scaled_rows, &Fuser::find_exp_sum, &Fuser::find_append,
                                &Fuser::find_window_scores, &Fuser::find_window_sum}) {
            Match match{i};
            auto node = (this->*find)(graph.nodes[i], match);
            if (!node) continue;
            replace(i, std::move(*node), match);
            return true;
        }
        return false;
    }

    // The node that makes the value, added to the match, if its operator is `op` and the value is read once; else null.
    const Node *maker(const std::string &value, const char *op, Match &match) const {
        const auto found = makers.find(value);
        if (found == makers.end() || is_part[found->second]) return nullptr;
        const Node &node = graph.nodes[found->second];
        static const std::set<std::string> of_one{"Cast", "Exp", "Sigmoid", "Softmax", "Sqrt", "Tanh", "Transpose"};
        if (node.op != op || (node.inputs.size() < 2 && of_one.count(node.op) == 0) || uses.at(value) != 1) return nullptr;
        if (std::find(match.begin(), match.end(), found->second) == match.end()) match.push_back(found->second);
        return &node;
    }

    // The value of a float32 constant of one element that adds no axis to what it is combined with.
    std::optional<float> real(const std::string &name) const {
        for (const Constant &constant : graph.constants) {
            if (constant.name != name || constant.type != Type::float32 || constant.bytes.size() != sizeof(float) || constant.dims.size() > 1) continue;
            float value;
            std::memcpy(&value, constant.bytes.data(), sizeof value);
            return value;
        }
        return std::nullopt;
    }

    // Whether a reduction is over the last axis, with keepdims.
    bool is_of_last_axis(const Node &node) const {
        for (const Constant &constant : graph.constants) {
            if (constant.name != node.inputs[1] || constant.type != Type::int64 || constant.bytes.size() != 8) continue;
            std::int64_t axis;
            std::memcpy(&axis, constant.bytes.data(), sizeof axis);
            return axis == -1 && node.integer("keepdims", 1);
        }
        return false;
    }

    static Node made(const char *op, const Node &last, std::vector<std::string> inputs) {
        Node node;
        node.op = op, node.name = last.name, node.outputs = last.outputs, node.inputs = std::move(inputs);
        return node;
    }

    // x / sqrt(mean(x²) + ε) · weight
    Found find_norm(const Node &last, Match &match) const {
        if (last.op != "Mul") return std::nullopt;
        for (const std::size_t side : {0, 1}) {
            match.resize(1);
            const Node *const quotient = maker(last.inputs[side], "Div", match);
            const Node *const root = quotient ? maker(quotient->inputs[1], "Sqrt", match) : nullptr;
            const Node *const sum = root ? maker(root->inputs[0], "Add", match) : nullptr;
            const Node *const mean = sum ? maker(sum->inputs[0], "ReduceMean", match) : nullptr;
            const Node *const square = mean ? maker(mean->inputs[0], "Pow", match) : nullptr;
            if (!square || real(square->inputs[1]) != 2.0f || square->inputs[0] != quotient->inputs[0]) continue;
            const auto epsilon = real(sum->inputs[1]);
            if (!epsilon || !is_of_last_axis(*mean)) continue;
            Node node = made(rms_norm, last, {quotient->inputs[0], last.inputs[1 - side]});
            node.attributes["epsilon"].real = *epsilon;
            return node;
        }
        return std::nullopt;
    }

    // x · same + (x with its halves exchanged) · other
    Found find_rotation(const Node &last, Match &match) const {
        const Node *const first = last.op == "Add" ? maker(last.inputs[0], "Mul", match) : nullptr;
        const Node *const second = first ? maker(last.inputs[1], "Mul", match) : nullptr;
        const Node *const joined = second ? maker(second->inputs[0], "Concat", match) : nullptr;
        if (!joined || joined->inputs.size() != 2) return std::nullopt;
        const Node *const halves = maker(joined->inputs[0], "Split", match);
        if (!halves || halves != maker(joined->inputs[1], "Split", match) || halves->outputs.size() != 2) return std::nullopt;
        if (joined->inputs[0] != halves->outputs[1] || joined->inputs[1] != halves->outputs[0]) return std::nullopt;
        if (first->inputs[0] != halves->inputs[0] || joined->integer("axis", 0) != halves->integer("axis", 0)) return std::nullopt;
        Node node = made(rotation, last, {halves->inputs[0], first->inputs[1], second->inputs[1], halves->inputs[1]});
        node.attributes["axis"].integer = halves->integer("axis", 0);
        return node;
    }

    // state · gate + k vᵀ, or state + k vᵀ
    Found find_update(const Node &last, Match &match) const {
        if (last.op != "Add") return std::nullopt;
        for (const std::size_t side : {0, 1}) {
            match.resize(1);
            const Node *const kept = maker(last.inputs[side], "Mul", match);
            const Node *const more = maker(last.inputs[1 - side], "MatMul", match);
            if (!more) continue;
            const std::string state = kept ? kept->inputs[0] : last.inputs[side], gate = kept ? kept->inputs[1] : "";
            return made(state_update, last, {state, gate, more->inputs[0], more->inputs[1]});
        }
        return std::nullopt;
    }

    // MatMulNBits followed by an addition.
    Found find_sum(const Node &last, Match &match) const {
        if (last.op != "Add") return std::nullopt;
        for (const std::size_t side : {0, 1}) {
            match.resize(1);
            const Node *const product = maker(last.inputs[side], "MatMulNBits", match);
            if (!product || product->inputs.size() > 4 || product->inputs.size() < 3) continue;
            Node node = made(product_sum, last, product->inputs);
            node.attributes = product->attributes;
            node.inputs.resize(5), node.inputs.push_back(last.inputs[1 - side]);  // where MatMulNBits has its bias
            return node;
        }
        return std::nullopt;
    }

    // silu(the first half of x) · the second half
    Found find_gated_half(const Node &last, Match &match) const {
        if (last.op != "Mul") return std::nullopt;
        for (const std::size_t side : {0, 1}) {
            match.resize(1);
            const Node *const silu = maker(last.inputs[side], "Mul", match);
            const Node *const share = silu ? maker(silu->inputs[1], "Sigmoid", match) : nullptr;
            if (!share || share->inputs[0] != silu->inputs[0] || uses.at(silu->inputs[0]) != 2) continue;
            const Node *const halves = maker(last.inputs[1 - side], "Split", match);
            if (!halves || halves->outputs != std::vector<std::string>{silu->inputs[0], last.inputs[1 - side]}) continue;
            Node node = made(gated_half, last, {halves->inputs[0], halves->inputs[1]});
            node.attributes["axis"].integer = halves->integer("axis", 0);
            return node;
        }
        return std::nullopt;
    }

    // A cache, an input that nothing else reads, and its new rows; an output of the graph.
    Found find_append(const Node &last, Match &) const {
        const bool is_cache = last.op == "Concat" && last.inputs.size() == 2 && last.integer("axis", 0) == 2 && results.count(last.outputs[0]) &&
                              given.count(last.inputs[0]) && uses.at(last.inputs[0]) == 1;
        return is_cache ? Found(made(append, last, last.inputs)) : std::nullopt;
    }

    // The node that appends to the cache, added to the match, if one other node reads the cache after it; else null.
    const Node *appended(const std::string &cache, Match &match) const {
        const auto found = makers.find(cache);
        if (found == makers.end() || graph.nodes[found->second].op != append || uses.at(cache) != 2) return nullptr;
        match.push_back(found->second);
        return &graph.nodes[found->second];
    }

    // The inputs of a node that reads a cache, added to its others: the cache and its new rows, and if these are 8 bits, the same of their
    // scales. Names its next outputs. Adds to the match.
    bool reads_cache(const std::string &rows, Node &node, Match &match) const {
        const Node *const scaled = maker(rows, scaled_rows, match);
        for (const std::string &cache : scaled ? scaled->inputs : std::vector<std::string>{rows}) {
            const Node *const joined = appended(cache, match);
            if (!joined) return false;
            node.inputs.insert(node.inputs.end(), joined->inputs.begin(), joined->inputs.end());
            node.outputs.push_back(cache);
        }
        return true;
    }

    // softmax(q kᵀ) v, or softmax(cap · tanh(q kᵀ · before_cap)) v, where k and v are caches
    Found find_attention(const Node &last, Match &match) const {
        const Node *const weights = last.op == "MatMul" ? maker(last.inputs[0], "Softmax", match) : nullptr;
        if (!weights || weights->integer("axis", -1) != -1) return std::nullopt;
        std::string scores = weights->inputs[0];
        std::optional<float> before, cap;
        if (const Node *const capped = maker(scores, "Mul", match)) {
            const Node *const curve = maker(capped->inputs[0], "Tanh", match);
            const Node *const scaled = curve ? maker(curve->inputs[0], "Mul", match) : nullptr;
            if (!scaled || !(before = real(scaled->inputs[1])) || !(cap = real(capped->inputs[1])) || *cap == 0) return std::nullopt;
            scores = scaled->inputs[0];
        }
        const Node *const product = maker(scores, transposed_product, match);
        if (!product) return std::nullopt;
        Node node = made(attention, last, {product->inputs[0]});
        if (!reads_cache(product->inputs[1], node, match) || !reads_cache(last.inputs[1], node, match)) return std::nullopt;
        if (node.inputs.size() != 5 && node.inputs.size() != 9) return std::nullopt;
        if (cap) node.attributes["before_cap"].real = *before, node.attributes["cap"].real = *cap;
        return node;
    }

    // a · (b with its last two axes exchanged)
    Found find_transposed(const Node &last, Match &match) const {
        const Node *const turned = last.op == "MatMul" ? maker(last.inputs[1], "Transpose", match) : nullptr;
        const auto order = turned ? turned->attributes.find("perm") : std::map<std::string, Attribute>::const_iterator{};
        if (!turned || order == turned->attributes.end() || order->second.integers.size() < 2) return std::nullopt;
        std::vector<std::int64_t> axes = order->second.integers;
        std::swap(axes.back(), axes[axes.size() - 2]);
        for (std::size_t axis = 0; axis < axes.size(); axis++)
            if (axes[axis] != static_cast<std::int64_t>(axis)) return std::nullopt;
        Node node = made(transposed_product, last, {last.inputs[0], turned->inputs[0]});
        node.attributes["perm"].integers = order->second.integers;
        return node;
    }

    // integers as float32, times a scale for each row
    Found find_scaled_rows(const Node &last, Match &match) const {
        const Node *const cast = last.op == "Mul" ? maker(last.inputs[0], "Cast", match) : nullptr;
        if (!cast || cast->integer("to", 0) != static_cast<int>(Type::float32)) return std::nullopt;
        return made(scaled_rows, last, {cast->inputs[0], last.inputs[1]});
    }

    // the sum of e^(x - most) along the last axis
    Found find_exp_sum(const Node &last, Match &match) const {
        if (last.op != "ReduceSum" || last.inputs.size() != 2 || !is_of_last_axis(last)) return std::nullopt;
        const Node *const powers = maker(last.inputs[0], "Exp", match);
        const Node *const less = powers ? maker(powers->inputs[0], "Sub", match) : nullptr;
        return less ? Found(made(exp_sum, last, less->inputs)) : std::nullopt;
    }

    // The inputs of a node that reads a window's rows, added to its others: of the rows, and of their scales if there are any, the cache,
    // the new row, and the sizes of the split that takes the oldest row. Names the first two outputs of the node. Adds to the match.
    bool reads_window(const std::string &rows, Node &node, Match &match) const {
        const Node *const scaled = maker(rows, scaled_rows, match);
        const std::vector<std::string> caches = scaled ? scaled->inputs : std::vector<std::string>{rows};
        for (const std::string &cache : caches) {
            const auto found = makers.find(cache);
            if (found == makers.end() || is_part[found->second] || results.count(cache) == 0 || uses.at(cache) != 2) return false;
            const Node &joined = graph.nodes[found->second];
            if (joined.op != "Concat" || joined.inputs.size() != 2 || joined.integer("axis", 0) != 2) return false;
            match.push_back(found->second);
            const Node *const halves = maker(joined.inputs[0], "Split", match);
            if (!halves || halves->outputs.size() != 2 || halves->outputs[1] != joined.inputs[0] || halves->integer("axis", 0) != 2) return false;
            for (const std::string &input : {halves->inputs[0], joined.inputs[1], halves->inputs[1]}) node.inputs.push_back(input);
        }
        node.outputs = {caches[0], scaled ? caches[1] : "", node.outputs[0]};
        node.inputs.resize(7);
        return true;
    }

    // q kᵀ, where k is a window, whose rows may be rotated
    Found find_window_scores(const Node &last, Match &match) const {
        if (last.op != transposed_product) return std::nullopt;
        Node node = made(window_scores, last, {last.inputs[0]});
        const Node *const turned = maker(last.inputs[1], rotation, match);
        if (!reads_window(turned ? turned->inputs[0] : last.inputs[1], node, match)) return std::nullopt;
        if (turned) node.inputs.insert(node.inputs.end(), turned->inputs.begin() + 1, turned->inputs.end());
        if (turned) node.attributes["axis"].integer = turned->integer("axis", 0);
        return node;
    }

    // weights · v, where v is a window
    Found find_window_sum(const Node &last, Match &match) const {
        if (last.op != "MatMul") return std::nullopt;
        Node node = made(window_sum, last, {last.inputs[0]});
        return reads_window(last.inputs[1], node, match) ? Found(node) : std::nullopt;
    }

    // A split of a window, of whose oldest row others make use: a node that copies this row alone stays in its place.
    void keep_oldest(std::size_t split, Node &part) {
        Node whole = graph.nodes[split], node = made(window_oldest, whole, whole.inputs);
        node.outputs.resize(1), part.outputs[0] += " again", whole.outputs[1] += " again";
        for (const std::string &input : node.inputs) uses[input]++;
        node.parts.push_back(std::move(whole));
        graph.nodes[split] = std::move(node), is_part[split] = false;
    }

    void replace(std::size_t last, Node node, Match &match) {
        std::sort(match.begin(), match.end());
        for (const std::size_t part : match) {
            for (const std::string &input : graph.nodes[part].inputs) uses[input]--;
            node.parts.push_back(graph.nodes[part]), is_part[part] = part != last;
            const std::string &first = graph.nodes[part].outputs[0];
            if ((node.op == window_scores || node.op == window_sum) && graph.nodes[part].op == "Split" && uses.count(first) && uses.at(first))
                keep_oldest(part, node.parts.back());
        }
        for (const std::string &input : node.inputs) uses[input]++;
        graph.nodes[last] = std::move(node);
    }

    Graph graph;
    std::vector<bool> is_part;
    std::map<std::string, std::size_t> makers;
    std::map<std::string, int> uses;
    std::set<std::string> given, results;  // names of inputs and outputs
};

}  // namespace

Graph fused(Graph graph) { return Fuser(std::move(graph)).run(); }

}  // namespace t2r::provider
