"""The words of generated parts, in each language of the site.

Facts come from the code; here are only headings and sentences. `tests/docs` and the build hold that both
languages have the same keys, and that every stage and axis has its name in Chinese.
"""

LANGUAGES = ("en", "zh")

WORDS: dict[str, dict[str, str]] = {
    "en": {
        "stage": "stage", "takes": "from", "gives": "to", "path": "path", "optional": "optional", "axis": "axis",
        "meaning": "meaning", "also": "also written", "signature": "Signature", "argument": "argument",
        "shape": "shape", "kind": "kind", "result": "result", "document": "In the first document",
        "document_new": "Not in the documents: the contract adds this row.", "clauses": "Clauses",
        "step": "step", "operation": "operation", "numbers": "numbers",
        "wrong": "Wrong", "right": "Right", "says": "attnspec says", "rule": "The rule", "all": "The whole file",
        "learned": "What goes wrong", "see": "Source", "try": "Try it", "raises": "It raises at once",
        "also_broken": "Also broken by it",
    },
    "zh": {
        "stage": "阶段", "takes": "输入形状", "gives": "输出形状", "path": "路径", "optional": "可选", "axis": "轴",
        "meaning": "含义", "also": "其他写法", "signature": "签名", "argument": "参数",
        "shape": "形状", "kind": "类型", "result": "返回值", "document": "在第一篇文档中",
        "document_new": "文档里没有这一行，是规范新增的。", "clauses": "条款",
        "step": "步骤", "operation": "操作", "numbers": "数值",
        "wrong": "错误写法", "right": "正确写法", "says": "attnspec 的输出", "rule": "对应条款", "all": "完整文件",
        "learned": "错在哪里", "see": "出处", "try": "自己试试", "raises": "它会直接报错",
        "also_broken": "同时违反的条款",
    },
}  # fmt: skip

AXES_ZH: dict[str, str] = {
    "batch": "彼此独立的序列数",
    "q_len": "查询（query）的位置数",
    "kv_len": "键和值（key / value）的位置数",
    "seq": "位置数（查询与键同为一条轴时）",
    "d_model": "模型宽度",
    "heads": "查询头数",
    "kv_heads": "键/值头数，必须整除 heads",
    "group": "共用同一个键/值头的查询头数",
    "d_k": "单个查询头或键头的宽度",
    "d_v": "单个值头的宽度",
    "width": "分头之前或合并之后并排的特征数：头数 × 头宽",
}

PATHS_ZH: dict[str, str] = {
    "common": "通用", "grouped": "分组", "fused stacked": "融合（堆叠）", "fused interleaved": "融合（交错）",
}  # fmt: skip

# For each stage: its name, and what it does.
STAGES_ZH: dict[str, tuple[str, str]] = {
    "project_queries": ("投影查询", "把提问一方的输入做线性投影。权重的第 `h*d_k : (h+1)*d_k` 行属于第 `h` 个头（按头连续排列）。"),
    "project_keys": ("投影键", "把被查看一方的输入做线性投影，每个键/值头一份。"),
    "project_values": ("投影值", "把将要混合进输出的输入做线性投影。"),
    "project_stacked": ("一次投影（堆叠）", "用一次矩阵乘法得到查询、键和值；所有查询的行排在最前面。"),
    "project_interleaved": ("一次投影（交错）", "用一次矩阵乘法得到查询、键和值；每个头的三块挨在一起。"),
    "split_heads": ("分头", "把投影后的宽度切成若干头；第 `h` 个头拿到 `h*d_k : (h+1)*d_k` 这一段。"),
    "split_stacked": ("分头（堆叠）", "切开堆叠式投影：先分查询/键/值，再分头。"),
    "split_interleaved": ("分头（交错）", "切开交错式投影：先分头，再分这个头的查询、键、值。"),
    "heads_first": ("维度置换", "把头这一维移到位置之前；只是视图，不复制数据。"),
    "share_heads": ("共享头", "让每个查询头都有对应的键/值头：第 `h` 个头读第 `h // group` 个。"),
    "scores": ("点积打分", "每个查询对每个键打分。"),
    "scale_scores": ("缩放", "把分数乘以 `scale`（无量纲）；规范的默认值是 `d_k ** -0.5`。"),
    "cap_scores": ("软截断", "把分数平滑地压进 `(-softcap, softcap)`；奇函数，在 0 处斜率为 1。"),
    "add_bias": ("加偏置", "把偏置加到缩放后的分数上；偏置本身既不缩放也不截断。"),
    "visible_positions": ("可见位置", "只凭位置判断一个查询能看到哪些键。"),
    "mask_scores": ("掩码", "屏蔽掩码禁止的位置；True 表示“可以关注”。"),
    "normalise": ("Softmax", "把每一行分数变成和为 1 的权重；什么都看不到的行全为零。"),
    "drop_weights": ("Dropout", "随机丢弃一部分权重，并把留下的放大。"),
    "aggregate_values": ("聚合 V", "按权重混合各个值。"),
    "merge_heads": ("合并多头", "把各个头重新并排放好，第 0 个头在最前。"),
    "project_output": ("输出投影", "混合各个头，并回到模型宽度。"),
}  # fmt: skip


def check_words(stages: set[str], axes: set[str], paths: set[str]) -> list[str]:
    """Return what a language lacks; a build with anything in this list fails."""
    missing = [f"words.py: {k} is not in every language" for k in set(WORDS["en"]) ^ set(WORDS["zh"])]
    for name, here, wanted in (
        ("STAGES_ZH", set(STAGES_ZH), stages), ("AXES_ZH", set(AXES_ZH), axes), ("PATHS_ZH", set(PATHS_ZH), paths),
    ):  # fmt: skip
        missing += [f"words.py: {name} lacks {k}" for k in sorted(wanted - here)]
        missing += [
            f"words.py: {name} has {k}, which the contract no longer has" for k in sorted(here - wanted)
        ]
    return missing
